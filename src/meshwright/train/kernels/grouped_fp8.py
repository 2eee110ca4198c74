"""Grouped products in fp8: every row of a factor is scaled by its own largest element and rounded to e4m3 (rowwise, current scaling).

The products of the forward pass and the gradients of the rows are in fp8. The gradients of the weights are not: they are sums over the
tokens of an expert. Tensor cores take such sums in fp8 only in multiples of 16 tokens, and factors would be scaled anew for each expert.
Hopper's grouped product in fp8 takes scales of rows, and only e4m3.

On a processor the same rounding is followed by ordinary products, so that tests see the same numbers.
"""

from __future__ import annotations

import warnings
from functools import cache

import torch
from torch import Tensor

from meshwright.train.kernels.fp8 import SMALLEST_UNIT
from meshwright.train.kernels.grouped import LOOP, GroupedArithmetic, agrees, arithmetic_for, ends_of, fitting

NARROW = torch.float8_e4m3fn


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Every row [..., width] rounded to fp8, and its scale in fp32 [...]."""
    if x.is_cuda:
        from meshwright.train.kernels.fp8_kernels import round_rows

        return round_rows(x.contiguous(), NARROW, SMALLEST_UNIT)
    largest = torch.finfo(NARROW).max
    units = (x.abs().amax(dim=-1).float() / largest).clamp_min(SMALLEST_UNIT)
    return (x.float() * (1.0 / units)[..., None]).clamp(-largest, largest).to(NARROW), units


def _multiplied(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """The product of rounded factors by torch on a GPU."""
    if not len(rows):
        return rows.new_empty(0, weight.shape[1], dtype=torch.bfloat16)
    (rows8, row_units), (weight8, units) = rounded(rows), rounded(weight)
    return torch._scaled_grouped_mm(
        rows8, weight8.transpose(1, 2), row_units, units, offs=ends_of(counts), out_dtype=torch.bfloat16, use_fast_accum=False
    )


def _emulated(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """The same by plain products."""
    (rows8, row_units), (weight8, units) = rounded(rows), rounded(weight)
    return LOOP.forward(rows8.float() * row_units[..., None], weight8.float() * units[..., None], counts).to(rows.dtype)


def _to_weight(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    return fitting(arithmetic_for(rows.device, rows.dtype), gradient, rows).to_weight(gradient, rows, counts)


EMULATED = GroupedArithmetic("fp8 on a processor", _emulated, LOOP.to_weight)
FP8 = GroupedArithmetic("torch in fp8", _multiplied, _to_weight)


@cache
def fp8_arithmetic_for(device: torch.device, dtype: torch.dtype) -> GroupedArithmetic:
    """Products in fp8 where torch's are right on this device; else those in bf16, which is said once."""
    if device.type != "cuda":
        return EMULATED
    if agrees(FP8, EMULATED, device, dtype):
        return FP8
    usual = arithmetic_for(device, dtype)
    warnings.warn(f"experts multiply in {dtype} by {usual.name}: torch's grouped products in fp8 are not right here", stacklevel=2)
    return usual
