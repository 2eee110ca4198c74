"""The router's product in fp32, and the best of its scores.

Tensor cores multiply factors in bf16 without loss and add up in fp32, so no copy of hidden states in fp32 is made. A gradient in fp32 is
split into two numbers in bf16, which together keep 16 of its 24 bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.layer_functions import HAS_KERNELS

if HAS_KERNELS:
    from meshwright.train.kernels import scores_kernel  # noqa: F401 - registers its operator


def logits_of(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product in fp32 of hidden states and the weights of a router, [..., experts]."""
    made: Tensor = _Logits.apply(x, weight)
    return made if bias is None else made + bias.float()


def highest(scores: Tensor, number: int) -> Tensor:
    """Indices of the highest scores along the last dimension, the highest first; of equal scores the lower index comes first."""
    if HAS_KERNELS and scores.is_cuda:
        found: Tensor = torch.ops.meshwright.highest(scores.contiguous(), number)
        return found
    return torch.sort(scores, dim=-1, descending=True, stable=True).indices[..., :number]


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        if _is_narrow(x, weight):
            return torch.unflatten(_wide_product(x.flatten(0, -2), weight.T), 0, x.shape[:-1])
        return F.linear(x.float(), weight.float())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        rows, given = x.flatten(0, -2), gradient.flatten(0, -2)
        if not _is_narrow(x, weight):
            return (given @ weight.float()).to(x.dtype).view(x.shape), (given.T @ rows.float()).to(weight.dtype)
        high = given.to(x.dtype)
        parts = torch.cat((high, (given - high.float()).to(x.dtype)), dim=1)
        d_rows = parts @ torch.cat((weight, weight))
        d_high, d_low = _wide_product(parts.T, rows).chunk(2)
        return d_rows.view(x.shape), (d_high + d_low).to(weight.dtype)


def _is_narrow(x: Tensor, weight: Tensor) -> bool:
    """Whether factors are multiplied as they are, in bf16 on a GPU."""
    return x.is_cuda and x.dtype == weight.dtype == torch.bfloat16


@torch.library.custom_op("meshwright::wide_product", mutates_args=())
def _wide_product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b` of matrices in bf16, in fp32. An operator of its own, so that a compiler leaves it as it is."""
    return torch.mm(a, b, out_dtype=torch.float32) if _gives_fp32(a.device) else a.float() @ b.float()


@_wide_product.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)


@cache
def _gives_fp32(device: torch.device) -> bool:
    """Whether torch gives products of bf16 in fp32 here."""
    one = torch.ones(16, 16, dtype=torch.bfloat16, device=device)
    try:
        return bool((torch.mm(one, one, out_dtype=torch.float32) == 16).all())
    except (RuntimeError, TypeError):
        return False
