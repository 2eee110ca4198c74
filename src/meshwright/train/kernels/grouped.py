"""Products of groups of rows with one matrix for each group: the experts' products.

On a GPU torch's grouped product does all groups at once, in bf16 on Hopper and on the first Blackwell; elsewhere it is a loop for which
the host waits, and is not asked for. It was wrong in some releases (gradients of empty groups were not written, others were NaN), so it
is tried before it is used, against a loop of plain products. Where the trial fails, or rows do not begin at whole 16 bytes, as it needs
them, kernels of our own are tried. The loop is what a processor uses, and the last resort of a GPU: there the host waits for the sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from meshwright.train.kernels.layer_functions import HAS_KERNELS
from meshwright.train.kernels.linear import PutOff

TRIAL_COUNTS = (0, 24, 0, 40, 1, 7, 150, 0)  # rows of each group: empty ones at both ends and in the middle
NO_ROWS = (0,) * len(TRIAL_COUNTS)  # what a rank has whose experts nobody visits
TRIAL_SIDE = 64
TRIAL_TOLERANCE = 2.0**-6  # of the largest entry: a few roundings to bf16
TORCH_MAJORS = (9, 10)  # compute capabilities on which torch's product is one kernel, which is in bf16 alone
TORCH_ALIGNMENT_BYTES = 16  # of every row: torch's product raises otherwise


@dataclass(frozen=True, slots=True)
class GroupedArithmetic:
    """How grouped products are computed. Rows are sorted by group; counts say how many each group has."""

    name: str
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


def ends_of(counts: Tensor) -> Tensor:
    """Where each group ends, as torch's grouped products take it."""
    return counts.cumsum(0, dtype=torch.int32)


def _torch_forward(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    if not len(rows):
        return rows.new_empty(0, weight.shape[1])
    return torch._grouped_mm(rows, weight.transpose(1, 2), offs=ends_of(counts))


def _torch_to_weight(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    if not len(rows):
        return rows.new_zeros(len(counts), gradient.shape[1], rows.shape[1])
    return torch._grouped_mm(gradient.T, rows, offs=ends_of(counts))


def _own_forward(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    from meshwright.train.kernels import grouped_kernels

    return grouped_kernels.grouped_product(rows, weight, counts)


def _own_to_weight(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    from meshwright.train.kernels import grouped_kernels

    return grouped_kernels.grouped_weight_gradient(gradient, rows, counts)


LOOP = GroupedArithmetic("a loop of plain products", _loop_forward, _loop_to_weight)
TORCH = GroupedArithmetic("torch", _torch_forward, _torch_to_weight)
OWN = GroupedArithmetic("meshwright", _own_forward, _own_to_weight)  # where there is Triton


@cache
def arithmetic_for(device: torch.device, dtype: torch.dtype) -> GroupedArithmetic:
    """Torch's grouped product where it is one kernel and right on this device, else our own. The first call tries them."""
    if device.type == "cuda" and has_torch_kernel(device, dtype) and is_right(TORCH, device, dtype):
        return TORCH
    return unaligned_arithmetic_for(device, dtype)


@cache
def unaligned_arithmetic_for(device: torch.device, dtype: torch.dtype) -> GroupedArithmetic:
    """Our own grouped product where it is right on this device, else the loop: for rows of any width."""
    return OWN if device.type == "cuda" and HAS_KERNELS and is_right(OWN, device, dtype) else LOOP


def has_torch_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped product is one kernel here, and not a loop for which the host waits."""
    return dtype == torch.bfloat16 and torch.cuda.get_device_capability(device)[0] in TORCH_MAJORS


def are_aligned(*factors: Tensor) -> bool:
    """Whether every row of the factors begins at whole 16 bytes, as torch's grouped product needs it."""
    return all(at % TORCH_ALIGNMENT_BYTES == 0 for one in factors for at in (one.data_ptr(), one.stride(-2) * one.element_size()))


def fitting(arithmetic: GroupedArithmetic, *factors: Tensor) -> GroupedArithmetic:
    """The way itself, or our own where it is torch's and cannot take these factors."""
    if arithmetic is not TORCH or are_aligned(*factors):
        return arithmetic
    return unaligned_arithmetic_for(factors[0].device, factors[0].dtype)


def is_right(arithmetic: GroupedArithmetic, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products and both gradients equal those of the loop, also with groups that have no rows."""
    return agrees(arithmetic, LOOP, device, dtype)


def agrees(arithmetic: GroupedArithmetic, other: GroupedArithmetic, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether two ways to compute grouped products give the same, but for a few roundings; also where no group has a row."""
    return all(_agree_on(counts, arithmetic, other, device, dtype) for counts in (TRIAL_COUNTS, NO_ROWS))


def _agree_on(
    sizes: tuple[int, ...], arithmetic: GroupedArithmetic, other: GroupedArithmetic, device: torch.device, dtype: torch.dtype
) -> bool:
    generator = torch.Generator(device=device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    counts = torch.tensor(sizes, device=device)
    rows, gradient = drawn(sum(sizes), TRIAL_SIDE), drawn(sum(sizes), 2 * TRIAL_SIDE)
    weight = drawn(len(sizes), 2 * TRIAL_SIDE, TRIAL_SIDE)

    def results(way: GroupedArithmetic) -> list[Tensor]:
        products = [way.forward(rows, weight, counts), way.to_input(gradient, weight, counts)]
        return [*products, way.to_weight(gradient, rows, counts)]

    wanted = results(other)
    _spoil(weight)
    try:
        found = results(arithmetic)
    except Exception:  # a kernel that is not there, or does not compile: of several kinds
        return False
    return all(_is_near(one, other) for one, other in zip(found, wanted, strict=True))


def _spoil(like: Tensor) -> None:
    """Leave memory that is not numbers where results will be: what a product does not write is then found."""
    spoilt = [torch.full_like(like, torch.nan) for _ in range(2)]
    del spoilt


def _is_near(found: Tensor, wanted: Tensor) -> bool:
    if found.shape != wanted.shape or not wanted.numel():
        return found.shape == wanted.shape
    apart = (found.float() - wanted.float()).abs().max()
    return bool(apart <= TRIAL_TOLERANCE * wanted.float().abs().max())  # false for NaN, too


class _GroupedProduct(torch.autograd.Function):
    """The product of a layer. A weight that no row reaches gets a gradient of zeros, so that every rank sends all its gradients."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, counts: Tensor, layer: GroupedLinear) -> Tensor:
        ctx.layer, ctx.is_frozen = layer, not layer.weight.requires_grad
        ctx.save_for_backward(None if ctx.is_frozen else rows, weight, counts)  # only the gradient of the weight needs the input
        matrices = layer.matrices(weight)
        return layer.arithmetic(rows, matrices).forward(rows, matrices, counts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, weight, counts = ctx.saved_tensors
        layer: GroupedLinear = ctx.layer
        gradient = gradient.contiguous()
        matrices = layer.matrices(weight)
        arithmetic = layer.arithmetic(gradient, matrices, *([] if ctx.is_frozen else [rows]))
        d_rows = arithmetic.to_input(gradient, matrices, counts)

        def to_weight() -> Tensor:
            return arithmetic.to_weight(gradient, rows, counts).view_as(weight)

        if ctx.is_frozen:
            return d_rows, None, None, None
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
        self.in_fp8 = False

    def matrices(self, weight: Tensor) -> Tensor:
        """The weight as one matrix for each group, [groups, out, in]."""
        return weight.view(-1, self.num_out, weight.shape[-1])

    def arithmetic(self, rows: Tensor, *others: Tensor) -> GroupedArithmetic:
        """How products of such rows with other factors are computed."""
        if self.in_fp8:
            from meshwright.train.kernels.grouped_fp8 import fp8_arithmetic_for

            return fitting(fp8_arithmetic_for(rows.device, rows.dtype), rows, *others)
        return fitting(arithmetic_for(rows.device, rows.dtype), rows, *others)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The product of each row with the matrix of its group; rows are sorted by group. A bias is added by what comes after it."""
        weight = self.weight.detach() if self.put_off is not None and torch.is_grad_enabled() else self.weight
        made: Tensor = _GroupedProduct.apply(rows, weight, counts, self)
        return made
