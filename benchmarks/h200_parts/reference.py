"""Llama in float64, written out: an independent reference for gradients, and AdamW likewise. Slow, and on the device's own float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.describe.model import Model
from meshwright.describe.workload import Training

Tensors = dict[str, Tensor]


def loss_and_gradients(model: Model, weights: Mapping[str, Tensor], tokens_BT: Tensor, labels_BT: Tensor) -> tuple[float, Tensors]:
    """Mean loss of a batch, and the gradient of each tensor."""
    own = {name: tensor.detach().double().requires_grad_() for name, tensor in weights.items()}
    x = F.embedding(tokens_BT, own["embed.weight"])
    for layer in range(model.num_layers):
        part = {name.removeprefix(f"layers.{layer}."): value for name, value in own.items() if name.startswith(f"layers.{layer}.")}
        x = x + _attention(model, part, normed(x, part["attention_norm.weight"], model.norm_epsilon))
        inner = normed(x, part["mlp_norm.weight"], model.norm_epsilon)
        x = x + swiglu(inner @ part["mlp.gate.weight"].T, inner @ part["mlp.up.weight"].T) @ part["mlp.down.weight"].T
    logits = normed(x, own["head.norm.weight"], model.norm_epsilon) @ own["head.weight"].T
    loss = F.cross_entropy(logits.flatten(0, 1), labels_BT.flatten())
    gradients = torch.autograd.grad(loss, list(own.values()))
    return loss.item(), dict(zip(own, gradients, strict=True))


def normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Root mean square taken out."""
    return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + epsilon) * weight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """The gated activation."""
    return gate * torch.sigmoid(gate) * up


def rotated(x_BTND: Tensor, theta: float) -> Tensor:
    """Heads turned by their position; dimension `i` pairs with `i + D/2`."""
    length, width = x_BTND.shape[1], x_BTND.shape[-1]
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=x_BTND.device) / width)
    angles = torch.arange(length, dtype=torch.float64, device=x_BTND.device)[:, None] * frequencies
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x_BTND.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


def _attention(model: Model, part: Mapping[str, Tensor], x: Tensor) -> Tensor:
    assert model.rotary_scaling is None, "the reference turns heads without scaling"
    query, key, value = ((x @ part[f"attention.{name}.weight"].T).unflatten(-1, (-1, model.head_dim)) for name in "qkv")
    shared = model.num_heads // model.num_kv_heads
    query, key = rotated(query, model.rotary_theta), rotated(key, model.rotary_theta)
    key, value = key.repeat_interleave(shared, dim=2), value.repeat_interleave(shared, dim=2)
    scores = torch.einsum("btnd,bsnd->bnts", query, key) / math.sqrt(model.head_dim)
    length = x.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
    shares = scores.masked_fill(~seen, -math.inf).softmax(dim=-1)
    return torch.einsum("bnts,bsnd->btnd", shares, value).flatten(2) @ part["attention.o.weight"].T


class AdamW64:
    """AdamW with bias correction in float64; decay applies to matrices."""

    def __init__(self, weights: Mapping[str, Tensor], training: Training) -> None:
        self.training = training
        self.values = {name: tensor.double().clone() for name, tensor in weights.items()}
        self.means = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.squares = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.number = 0

    def step(self, gradients: Mapping[str, Tensor], rate: float) -> None:
        """Apply gradients as they come."""
        self.number += 1
        beta1, beta2 = self.training.beta1, self.training.beta2
        for name, value in self.values.items():
            gradient = gradients[name].double()
            mean = self.means[name].mul_(beta1).add_(gradient, alpha=1 - beta1) / (1 - beta1**self.number)
            square = self.squares[name].mul_(beta2).add_(gradient.square(), alpha=1 - beta2) / (1 - beta2**self.number)
            decay = self.training.weight_decay if value.dim() > 1 else 0.0
            value.mul_(1 - rate * decay).sub_(rate * mean / (square.sqrt() + self.training.epsilon))


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Distance over length, in float64; infinite where something is no number, so that the worst of several is that."""
    found, wanted = found.double(), wanted.double()
    error = ((found - wanted).norm() / wanted.norm().clamp_min(1e-300)).item()
    return error if math.isfinite(error) else math.inf
