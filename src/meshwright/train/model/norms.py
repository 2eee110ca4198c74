"""Norms over hidden states, latent vectors and heads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.train.kernels.layer_functions import Made, past_and_normed, past_and_remade


class LayerNorm(nn.Module):
    """Subtracts the mean and divides by the standard deviation (GPT-3)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`x` itself, for the residual, and `x` normalized."""
        return x, F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


class RMSNorm(nn.Module):
    """Divides by the root mean square (Llama)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))
        self.remakes = False  # whether products compute this output again in the backward pass instead of keeping it

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | Made]:
        """`x` itself, for the residual, and `x` normalized."""
        return (past_and_remade if self.remakes else past_and_normed)(x, self.weight, self.epsilon)

    def alone(self, x: Tensor) -> Tensor:
        """`x` normalized, where there is no residual: heads, latent vectors."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


def norm_of(model: Model) -> LayerNorm | RMSNorm:
    """The model's kind of norm over hidden states."""
    return (LayerNorm if model.layer_norm else RMSNorm)(model.hidden, model.norm_epsilon)
