"""Rotary positions: how fast each pair of dimensions turns, and the cosines and sines of positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from meshwright.describe.model import YARN, Model, RotaryScaling

Rotation = tuple[Tensor, Tensor]  # cosines and sines of positions


def rotary_frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None) -> Tensor:
    """Radians per token of each pair of a head's dimensions, [D / 2], with the scaling for longer contexts.

    The computation is in fp32 and in the order of the package transformers, because far into a context one bit of a frequency changes an
    angle by 1e-3.
    """
    wavelengths = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim)
    frequencies = 1.0 / wavelengths
    if scaling is None:
        return frequencies
    if scaling.kind == YARN:
        return _by_dimension(frequencies, wavelengths, theta, scaling)
    return _by_turns(frequencies, scaling)


def _by_turns(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Llama 3: wavelengths longer than the original context are stretched, short ones are not, and those between are interpolated."""
    turns = scaling.original_positions / (2 * math.pi / frequencies)  # full turns over the original context
    kept = (turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)
    blended = (1 - kept) * frequencies / scaling.factor + kept * frequencies
    return torch.where(kept <= 0, frequencies / scaling.factor, torch.where(kept >= 1, frequencies, blended))


def _by_dimension(frequencies: Tensor, wavelengths: Tensor, theta: float, scaling: RotaryScaling) -> Tensor:
    """YaRN (Peng et al. 2023, arXiv:2309.00071): a ramp over the dimensions, from those that turn often to those that turn rarely."""
    head_dim = 2 * len(frequencies)

    def dimension_of(turns: float) -> float:
        """The pair of dimensions that turns so often over the original context."""
        return head_dim * math.log(scaling.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension_of(scaling.high_turns), dimension_of(scaling.low_turns)
    if scaling.truncates:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    span = last - first if last != first else 0.001
    stretched = ((torch.arange(len(frequencies), dtype=torch.float32, device="cpu") - first) / span).clamp(0, 1)
    kept = 1 - stretched
    return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + frequencies * kept


class Rotary(nn.Module):
    """Cosines and sines of positions, computed once for the longest sequence."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        width = model.latent.rope_dim if model.latent else model.head_dim
        self.frequencies = rotary_frequencies(width, model.rotary_theta, model.rotary_scaling)
        self.magnitude = model.rotary_scaling.magnitude if model.rotary_scaling else 1.0

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Cosine and sine of each position, [T, 1, D]."""
        self.frequencies = self.frequencies.to(positions.device)  # once, because the host waits for all work before such a copy
        with torch.no_grad():
            angles = positions[:, None].float() * self.frequencies
            both = torch.cat((angles, angles), dim=-1)[:, None, :]
            return (both.cos() * self.magnitude).to(dtype), (both.sin() * self.magnitude).to(dtype)
