"""Rounding to fp8 on a GPU: a tile is read once and written as it is, transposed, or both.

Hopper multiplies fp8 only if the summed dimension is contiguous in both factors, so each tensor is needed in two orientations: one for its
product, one for the gradient of the weight. The kernels are registered as torch operators, so that compiled layers can contain them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

TILE_ROWS, TILE_COLUMNS, NUM_WARPS = 64, 128, 4


@triton.jit
def _round(
    source: tl.tensor,
    unit: tl.tensor,
    straight: tl.tensor,
    turned: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    turned_stride: tl.tensor,
    LARGEST: tl.constexpr,
    STRAIGHT: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    factor = 1.0 / tl.load(unit)
    values = tl.load(source + row[:, None] * num_columns + column[None, :], mask=inside).to(tl.float32) * factor
    values = tl.clamp(values, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    if STRAIGHT:
        tl.store(straight + row[:, None] * num_columns + column[None, :], values.to(straight.dtype.element_ty), mask=inside)
    if TURNED:
        over = tl.trans(values.to(turned.dtype.element_ty))
        there = (column[:, None] < num_columns) & (row[None, :] < num_rows)
        tl.store(turned + column[:, None] * turned_stride + row[None, :], over, mask=there)


def _launch(source: Tensor, unit: Tensor, straight: Tensor | None, turned: Tensor | None, wrap: Callable[..., Any] = wrap_triton) -> None:
    rows, columns = source.shape
    grid = (triton.cdiv(columns, TILE_COLUMNS), triton.cdiv(rows, TILE_ROWS))
    made = straight if straight is not None else turned
    assert made is not None, "at least one of the two is asked for"
    wrap(_round)[grid](
        source,
        unit,
        straight if straight is not None else made,
        turned if turned is not None else made,
        rows,
        columns,
        turned.stride(0) if turned is not None else rows,
        LARGEST=torch.finfo(made.dtype).max,
        STRAIGHT=straight is not None,
        TURNED=turned is not None,
        ROWS=TILE_ROWS,
        COLUMNS=TILE_COLUMNS,
        num_warps=NUM_WARPS,
    )


def round_into(source: Tensor, unit: Tensor, turned: Tensor) -> Tensor:
    """`source` in units of `unit`; its transpose is written to `turned`, whose rows may be further apart."""
    straight = torch.empty_like(source, dtype=turned.dtype, memory_format=torch.contiguous_format)
    _launch(source, unit, straight, turned, wrap=lambda kernel: kernel)
    return straight


@triton_op("meshwright::fp8_straight", mutates_args=())
def fp8_straight(source: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """`source` in units of `unit`."""
    straight = torch.empty_like(source, dtype=dtype, memory_format=torch.contiguous_format)
    _launch(source, unit, straight, None)
    return straight


@triton_op("meshwright::fp8_turned", mutates_args=())
def fp8_turned(source: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """`source` in units of `unit`, transposed."""
    turned = torch.empty(source.shape[::-1], dtype=dtype, device=source.device)
    _launch(source, unit, None, turned)
    return turned


@triton_op("meshwright::fp8_both", mutates_args=())
def fp8_both(source: Tensor, unit: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`source` in units of `unit`, and its transpose."""
    straight = torch.empty_like(source, dtype=dtype, memory_format=torch.contiguous_format)
    turned = torch.empty(source.shape[::-1], dtype=dtype, device=source.device)
    _launch(source, unit, straight, turned)
    return straight, turned


@triton.jit
def _round_norm(
    x: tl.tensor,
    scale: tl.tensor,
    weight: tl.tensor,
    unit: tl.tensor,
    turned: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    value = tl.load(x + row[:, None] * num_columns + column[None, :], mask=inside).to(tl.float32)
    rate = tl.load(scale + row, mask=row < num_rows).to(tl.float32)
    factor = tl.load(weight + column, mask=column < num_columns).to(tl.float32)
    normed = (value * rate[:, None] * factor[None, :]).to(x.dtype.element_ty).to(tl.float32)
    values = tl.clamp(normed * (1.0 / tl.load(unit)), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    over = tl.trans(values.to(turned.dtype.element_ty))
    tl.store(turned + column[:, None] * num_rows + row[None, :], over, mask=(column[:, None] < num_columns) & (row[None, :] < num_rows))


@triton_op("meshwright::fp8_norm_turned", mutates_args=())
def fp8_norm_turned(x: Tensor, scale: Tensor, weight: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """The norm of `x` in units of `unit`, transposed."""
    columns = x.shape[-1]
    rows = x.numel() // columns
    turned = torch.empty(columns, rows, dtype=dtype, device=x.device)
    wrap_triton(_round_norm)[(triton.cdiv(columns, TILE_COLUMNS), triton.cdiv(rows, TILE_ROWS))](
        x, scale, weight, unit, turned, rows, columns,
        LARGEST=torch.finfo(dtype).max, ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return turned


@triton.jit
def _round_gate(
    gate_up: tl.tensor,
    unit: tl.tensor,
    turned: tl.tensor,
    num_rows: tl.tensor,
    num_columns: tl.tensor,
    LARGEST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row[:, None] < num_rows) & (column[None, :] < num_columns)
    at = gate_up + row[:, None] * 2 * num_columns + column[None, :]
    gate = tl.load(at, mask=inside).to(tl.float32)
    up = tl.load(at + num_columns, mask=inside).to(tl.float32)
    inner = (gate * tl.sigmoid(gate) * up).to(gate_up.dtype.element_ty).to(tl.float32)
    values = tl.clamp(inner * (1.0 / tl.load(unit)), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    over = tl.trans(values.to(turned.dtype.element_ty))
    tl.store(turned + column[:, None] * num_rows + row[None, :], over, mask=(column[:, None] < num_columns) & (row[None, :] < num_rows))


@triton_op("meshwright::fp8_gate_turned", mutates_args=())
def fp8_gate_turned(gate_up: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """silu(gate) * up in units of `unit`, transposed."""
    columns = gate_up.shape[-1] // 2
    rows = gate_up.numel() // (2 * columns)
    turned = torch.empty(columns, rows, dtype=dtype, device=gate_up.device)
    wrap_triton(_round_gate)[(triton.cdiv(columns, TILE_COLUMNS), triton.cdiv(rows, TILE_ROWS))](
        gate_up, unit, turned, rows, columns,
        LARGEST=torch.finfo(dtype).max, ROWS=TILE_ROWS, COLUMNS=TILE_COLUMNS, num_warps=NUM_WARPS,
    )  # fmt: skip
    return turned


@triton.jit
def _round_rows(
    source: tl.tensor,
    rounded: tl.tensor,
    units: tl.tensor,
    num_columns: tl.tensor,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    values = tl.load(source + row * num_columns + column, mask=column < num_columns, other=0.0).to(tl.float32)
    unit = tl.maximum(tl.max(tl.abs(values), axis=0) / LARGEST, SMALLEST)
    values = tl.clamp(values * (1.0 / unit), -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    tl.store(rounded + row * num_columns + column, values.to(rounded.dtype.element_ty), mask=column < num_columns)
    tl.store(units + row, unit)


def round_rows(source: Tensor, dtype: torch.dtype, smallest: float) -> tuple[Tensor, Tensor]:
    """Every row [..., width] in units of its own, and the units [...]."""
    rounded = torch.empty_like(source, dtype=dtype)
    units = torch.empty(source.shape[:-1], dtype=torch.float32, device=source.device)
    if units.numel():
        columns = triton.next_power_of_2(source.shape[-1])
        _round_rows[(units.numel(),)](
            source, rounded, units, source.shape[-1],
            LARGEST=torch.finfo(dtype).max, SMALLEST=smallest, COLUMNS=columns, num_warps=min(max(columns // 512, 1), 8),
        )  # fmt: skip
    return rounded, units
