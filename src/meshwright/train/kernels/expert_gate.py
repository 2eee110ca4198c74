"""The activation function of experts, times the weight of each visit: what the second product of experts multiplies.

A weight counts the same before that product as after it, since a product is linear. Before it there are fewer numbers to multiply, and
nothing that the product makes has to be kept for the gradients of the weights.

On a GPU with kernels for it each direction is one pass. The gradients of biases are sums over the rows of each group, row after row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.layer_functions import HAS_KERNELS, SWISH

if HAS_KERNELS:
    from meshwright.train.kernels import expert_gate_kernels


class Groups(NamedTuple):
    """Biases of groups [groups, width], and how many of the rows, which are sorted by group, each group has."""

    bias: Tensor
    counts: Tensor


def weighted_gate(gate_up: Tensor, weights: Tensor, limit: float = 0.0, groups: Groups | None = None) -> Tensor:
    """SwiGLU of each row with gate and up side by side, times the row's weight [rows].

    With a `limit` it is gpt-oss's: gate and up are clamped, and up has one added to it. With `groups` their biases are added first.
    """
    made: Tensor = _WeightedGate.apply(gate_up, weights, limit, *(groups or (None, None)))
    return made


def _widened(gate_up: Tensor, bias: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Gate and up in at least fp32, with their biases."""
    wide = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32))
    if bias is not None and counts is not None:
        wide = wide + bias.repeat_interleave(counts, dim=0, output_size=len(gate_up))
    gate, up = wide.chunk(2, dim=-1)
    return gate, up


def _gated(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    if not limit:
        return F.silu(gate) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * SWISH))


def _gradients(gate: Tensor, up: Tensor, gradient: Tensor, limit: float) -> Tensor:
    """The gradient of gate and up, side by side, from that of what they make."""
    if not limit:
        share = torch.sigmoid(gate)
        return torch.cat((gradient * up * share * (1 + gate * (1 - share)), gradient * gate * share), dim=-1)
    low, mid = gate.clamp(max=limit), up.clamp(-limit, limit)
    share = torch.sigmoid(low * SWISH)
    d_gate = gradient * (mid + 1) * share * (1 + SWISH * low * (1 - share))
    return torch.cat((torch.where(gate <= limit, d_gate, 0.0), torch.where(up.abs() <= limit, gradient * low * share, 0.0)), dim=-1)


def _group_sums(rows: Tensor, counts: Tensor) -> Tensor:
    return torch.stack([part.sum(dim=0) for part in rows.split(counts.tolist())])


class _WeightedGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, weights: Tensor, limit: float, bias: Tensor | None, counts: Tensor | None) -> Tensor:
        ctx.limit = limit
        ctx.save_for_backward(gate_up, weights, bias, counts)
        if HAS_KERNELS and gate_up.is_cuda:
            return expert_gate_kernels.gated(gate_up, weights, limit, bias, counts)
        made = _gated(*_widened(gate_up, bias, counts), limit)
        return (made * weights[:, None]).to(gate_up.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gate_up, weights, bias, counts = ctx.saved_tensors
        if HAS_KERNELS and gate_up.is_cuda:
            found = expert_gate_kernels.gate_gradients(gate_up, weights, gradient.contiguous(), ctx.limit, bias, counts)
            d_bias = None if bias is None else expert_gate_kernels.group_sums(found[0], counts).to(bias.dtype)
            return *found, None, d_bias, None
        gate, up = _widened(gate_up, bias, counts)
        wide = gradient.to(gate.dtype)
        d_weights = (wide * _gated(gate, up, ctx.limit)).sum(dim=-1).to(weights.dtype)
        d_gate_up = _gradients(gate, up, wide * weights[:, None], ctx.limit)
        d_bias = None if bias is None else _group_sums(d_gate_up, counts).to(bias.dtype)
        return d_gate_up.to(gate_up.dtype), d_weights, None, d_bias, None
