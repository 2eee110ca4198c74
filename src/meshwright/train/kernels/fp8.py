"""Matrix products in fp8: factors are scaled by their largest element and rounded (tensorwise, current scaling); sums have more bits.

Inputs and weights are rounded to e4m3 (three bits of mantissa), gradients to e5m2 (two bits, with a wider range); Micikevicius et al. 2022,
arXiv:2209.05433. On a processor the same rounding is followed by an ordinary product, so that tests see the same numbers. The backward pass
rounds the input again instead of keeping it rounded. If the input is `Made`, it is also computed again in the same pass. A layer then keeps
no results of its norms and its gate, because it keeps their inputs anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from meshwright.train.kernels.layer_functions import Made
from meshwright.train.kernels.linear import Arithmetic, Linear, Tensors, split_product
from meshwright.train.kernels.linear import product as plain_product

INPUT, GRADIENT = torch.float8_e4m3fn, torch.float8_e5m2
SMALLEST_UNIT = 1e-30  # for a tensor of zeros


def unit_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The scale of the rounded tensor, a scalar in fp32: the largest element of the tensor becomes the largest number of the format.

    The maximum is taken over rows first: a compiler can then compute it in the kernel that produces the row.
    """
    return (x.abs().amax(dim=-1).amax().float() / torch.finfo(dtype).max).clamp_min(SMALLEST_UNIT)


def straight(x: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix rounded to fp8."""
    if x.is_cuda:
        rounded: Tensor = torch.ops.meshwright.fp8_straight(x, unit, dtype)
        return rounded
    largest = torch.finfo(dtype).max
    return (x.float() * (1.0 / unit)).clamp(-largest, largest).to(dtype)


def turned(x: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """A matrix rounded to fp8 and transposed."""
    over: Tensor = torch.ops.meshwright.fp8_turned(x, unit, dtype) if x.is_cuda else straight(x, unit, dtype).T.contiguous()
    return over


def both(x: Tensor, unit: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A matrix rounded to fp8, and the same matrix transposed."""
    if x.is_cuda:
        rounded, over = torch.ops.meshwright.fp8_both(x, unit, dtype)
        return rounded, over
    rounded = straight(x, unit, dtype)
    return rounded, rounded.T.contiguous()


def both_into(x: Tensor, unit: Tensor, over: Tensor) -> Tensor:
    """A matrix rounded to fp8; its transpose is written to `over`, which may be some columns of a larger matrix."""
    if x.is_cuda:
        from meshwright.train.kernels.fp8_kernels import round_into

        return round_into(x, unit, over)
    rounded = straight(x, unit, over.dtype)
    over.copy_(rounded.T)
    return rounded


def multiply(a: Tensor, b: Tensor, unit_a: Tensor, unit_b: Tensor, dtype: torch.dtype, *, fast: bool) -> Tensor:
    """`a @ b.T` of two rounded matrices. `fast` sums in the few bits of the tensor cores; otherwise partial sums are added in fp32.

    Forwards are fast, gradients are not: when thousands of small terms are added to a large one, as in the head, few bits lose the small
    terms.
    """
    if a.is_cuda:
        return torch._scaled_mm(a, b.T, scale_a=unit_a, scale_b=unit_b, out_dtype=dtype, use_fast_accum=fast)
    return (a.float() @ b.float().T * (unit_a * unit_b)).to(dtype)


def turned_again(how: str, kept: Sequence[Tensor], unit: Tensor) -> Tensor:
    """The input of a product, rounded and transposed, from what was kept: the input itself, or what it is computed from."""
    over: Tensor
    if how == "norm":
        over = torch.ops.meshwright.fp8_norm_turned(*kept, unit, INPUT)
    elif how == "gate":
        over = torch.ops.meshwright.fp8_gate_turned(*kept, unit, INPUT)
    else:
        over = turned(kept[0], unit, INPUT)
    return over


class _Product(torch.autograd.Function):
    """`x @ weight.T` with all three products in fp8. `how` and `sources` say how `x` can be computed again; without them `x` is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, how: str, *sources: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        unit_x, unit_w = unit_of(rows, INPUT), unit_of(weight, INPUT)
        ctx.save_for_backward(unit_x, weight, unit_w, *(sources or (rows,)))
        ctx.shape, ctx.how = x.shape, how
        x8, w8 = straight(rows, unit_x, INPUT), straight(weight, unit_w, INPUT)
        return torch.unflatten(multiply(x8, w8, unit_x, unit_w, x.dtype, fast=True), 0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        unit_x, weight, unit_w, *kept = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        unit_g = unit_of(rows, GRADIENT)
        g8, g8_turned = both(rows, unit_g, GRADIENT)
        d_x = multiply(g8, turned(weight, unit_w, INPUT), unit_g, unit_w, gradient.dtype, fast=False)
        d_weight = multiply(g8_turned, turned_again(ctx.how, kept, unit_x), unit_g, unit_x, weight.dtype, fast=False)
        return d_x.view(ctx.shape), d_weight, None, *(None for _ in kept if ctx.how)


def _forward(rows: Tensor, weight: Tensor) -> tuple[Tensor, Tensors]:
    unit_x, unit_w = unit_of(rows, INPUT), unit_of(weight, INPUT)
    x8, w8 = straight(rows, unit_x, INPUT), straight(weight, unit_w, INPUT)
    return multiply(x8, w8, unit_x, unit_w, rows.dtype, fast=True), (unit_x, unit_w)


def _to_input(gradient: Tensor, weight: Tensor, kept: Tensors) -> tuple[Tensor, Tensors]:
    unit_w, unit_g = kept[1], unit_of(gradient, GRADIENT)
    g8, g8_turned = both(gradient, unit_g, GRADIENT)
    return multiply(g8, turned(weight, unit_w, INPUT), unit_g, unit_w, gradient.dtype, fast=False), (g8_turned, unit_g)


def _to_weight(carried: Tensors, rows: Tensor, kept: Tensors) -> Tensor:
    (g8_turned, unit_g), unit_x = carried, kept[0]
    return multiply(g8_turned, turned(rows, unit_x, INPUT), unit_g, unit_x, rows.dtype, fast=False)


FP8 = Arithmetic(_forward, _to_input, _to_weight)


def product(x: Tensor | Made, layer: Linear) -> Tensor:
    """The product of a layer, in fp8."""
    if layer.puts_off:
        return split_product(x, layer)
    value, how, sources = x if isinstance(x, Made) else (x, "", ())
    made: Tensor = _Product.apply(value, layer.weight, how, *sources)
    return made


@runtime_checkable
class Remaking(Protocol):
    """A module whose results a product may compute again instead of keeping them."""

    remakes: bool


@runtime_checkable
class Grouped(Protocol):
    """A module whose grouped products may be in fp8."""

    in_fp8: bool


def use_fp8(chunk: nn.Module, device: torch.device, *, remakes: bool = False) -> None:
    """Run every matrix product of the layers in fp8. With `remakes`, inputs are computed again in the backward: on a GPU, without ports."""
    if device.type == "cuda":
        from meshwright.train.kernels import fp8_kernels  # noqa: F401 - registers its operators
    for module in chunk.modules():
        if isinstance(module, Linear):
            module.arithmetic = FP8
            if module.multiply is plain_product:  # a product with a collective computes by `arithmetic`
                module.multiply = product
        elif isinstance(module, Grouped):
            module.in_fp8 = True
        elif isinstance(module, Remaking):
            module.remakes = remakes
