"""Products of groups of rows with one matrix for each group: the experts' products.

On a GPU torch's grouped product does all groups at once. It was wrong in some releases (gradients of empty groups were not written, others
were NaN), so it is tried before it is used, against a loop of plain products. The loop is what a processor uses, and what is used where the
trial fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.train.kernels.linear import PutOff

TRIAL_COUNTS = (0, 24, 0, 40, 1, 0)  # rows of each group: empty ones at both ends and in the middle
TRIAL_SIDE = 64
TRIAL_TOLERANCE = 2.0**-6  # of the largest entry: a few roundings to bf16


@dataclass(frozen=True, slots=True)
class GroupedArithmetic:
    """How grouped products are computed. Rows are sorted by group; counts say how many each group has."""

    forward: Callable[[Tensor, Tensor, Tensor], Tensor]  # rows [P, in], weights [G, out, in], counts [G] -> [P, out]
    to_weight: Callable[[Tensor, Tensor, Tensor], Tensor]  # gradients [P, out], rows [P, in], counts -> [G, out, in]

    def to_input(self, gradient: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
        """The gradient of the rows."""
        return self.forward(gradient, weight.transpose(1, 2), counts)


def _loop_forward(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    out = rows.new_empty(len(rows), weight.shape[1])
    for part, made, matrix in zip(rows.split(_sizes(counts)), out.split(_sizes(counts)), weight, strict=True):
        torch.mm(part, matrix.T, out=made)
    return out


def _loop_to_weight(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    sizes = _sizes(counts)
    made = rows.new_zeros(len(sizes), gradient.shape[1], rows.shape[1])
    for matrix, d_part, part in zip(made, gradient.split(sizes), rows.split(sizes), strict=True):
        if len(part):
            torch.mm(d_part.T, part, out=matrix)
    return made


def _sizes(counts: Tensor) -> list[int]:
    sizes: list[int] = counts.tolist()
    return sizes


def _ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


def _torch_forward(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    return torch._grouped_mm(rows, weight.transpose(1, 2), offs=_ends(counts))


def _torch_to_weight(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    return torch._grouped_mm(gradient.T, rows, offs=_ends(counts))


LOOP = GroupedArithmetic(_loop_forward, _loop_to_weight)
TORCH = GroupedArithmetic(_torch_forward, _torch_to_weight)


@cache
def arithmetic_for(device: torch.device, dtype: torch.dtype) -> GroupedArithmetic:
    """Torch's grouped product where it is right on this device, else the loop. The first call tries it."""
    return TORCH if device.type == "cuda" and is_right(TORCH, device, dtype) else LOOP


def is_right(arithmetic: GroupedArithmetic, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products and both gradients equal those of the loop, also with groups that have no rows."""
    generator = torch.Generator(device=device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    counts = torch.tensor(TRIAL_COUNTS, device=device)
    rows, gradient = drawn(sum(TRIAL_COUNTS), TRIAL_SIDE), drawn(sum(TRIAL_COUNTS), 2 * TRIAL_SIDE)
    weight = drawn(len(TRIAL_COUNTS), 2 * TRIAL_SIDE, TRIAL_SIDE)
    try:
        found = [arithmetic.forward(rows, weight, counts), arithmetic.to_input(gradient, weight, counts)]
        found.append(arithmetic.to_weight(gradient, rows, counts))
    except RuntimeError:
        return False
    wanted = [LOOP.forward(rows, weight, counts), LOOP.to_input(gradient, weight, counts), LOOP.to_weight(gradient, rows, counts)]
    return all(_is_near(one, other) for one, other in zip(found, wanted, strict=True))


def _is_near(found: Tensor, wanted: Tensor) -> bool:
    apart = (found.float() - wanted.float()).abs().max()
    return bool(apart <= TRIAL_TOLERANCE * wanted.float().abs().max())  # false for NaN, too


class _GroupedProduct(torch.autograd.Function):
    """The product of a layer. A weight that no row reaches gets a gradient of zeros, so that every rank sends all its gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: Tensor, layer: GroupedLinear) -> Tensor:
        ctx.save_for_backward(rows, weight, counts)
        ctx.layer = layer
        ctx.puts_off = layer.put_off is not None
        return layer.arithmetic(rows).forward(rows, layer.matrices(weight), counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, weight, counts = ctx.saved_tensors
        layer: GroupedLinear = ctx.layer
        gradient = gradient.contiguous()
        arithmetic = layer.arithmetic(rows)
        d_rows = arithmetic.to_input(gradient, layer.matrices(weight), counts)

        def to_weight() -> Tensor:
            return arithmetic.to_weight(gradient, rows, counts).view_as(weight)

        if layer.put_off is None:
            return d_rows, to_weight(), None, None
        layer.put_off.append(lambda: (layer.weight, to_weight()))
        return d_rows, None, None, None


class GroupedLinear(nn.Module):
    """One matrix product for each group of rows. The matrices lie below each other in one weight, [groups x out, in]."""

    def __init__(self, num_groups: int, num_in: int, num_out: int, *, bias: bool) -> None:
        super().__init__()
        self.num_out = num_out
        self.weight = nn.Parameter(torch.empty(num_groups * num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_groups * num_out)) if bias else None
        self.put_off: PutOff | None = None

    def matrices(self, weight: Tensor) -> Tensor:
        """The weight as one matrix for each group, [groups, out, in]."""
        return weight.view(-1, self.num_out, weight.shape[-1])

    def arithmetic(self, rows: Tensor) -> GroupedArithmetic:
        """How products of such rows are computed."""
        return arithmetic_for(rows.device, rows.dtype)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The product of each row with the matrix of its group, and the group's bias; rows are sorted by group."""
        weight = self.weight.detach() if self.put_off is not None and torch.is_grad_enabled() else self.weight
        made: Tensor = _GroupedProduct.apply(rows, weight, counts, self)
        if self.bias is None:
            return made
        groups = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=len(rows))
        return made + self.bias.view(-1, self.num_out)[groups]
