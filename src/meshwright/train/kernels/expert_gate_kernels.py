"""The weighted activation function of experts on a GPU: one pass forward and one backward, and sums of gradients over groups of rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from meshwright.train.kernels.layer_functions import SWISH

MOST_COLUMNS = 1024  # columns of gates that are loaded at a time
SUM_ROWS, SUM_COLUMNS = 32, 64


@triton.jit
def _group_of(counts: tl.tensor, row: tl.tensor, num_groups: tl.tensor, GROUPS: tl.constexpr) -> tl.tensor:
    """The group that a row belongs to: the number of groups that end before it."""
    group = tl.arange(0, GROUPS)
    ends = tl.cumsum(tl.load(counts + group, mask=group < num_groups, other=0), axis=0)
    return tl.sum(((ends <= row) & (group < num_groups)).to(tl.int64), axis=0)


@triton.jit
def _gate(
    gate_up: tl.tensor,
    weights: tl.tensor,
    bias: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    num_groups: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMIT: tl.constexpr,
    SWISH: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + row).to(tl.float32)
    if GROUPS > 0:
        group = _group_of(counts, row, num_groups, GROUPS)
    for start in tl.static_range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < WIDTH
        at = gate_up + row * 2 * WIDTH + column
        gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(at + WIDTH, mask=inside, other=0.0).to(tl.float32)
        if GROUPS > 0:
            gate += tl.load(bias + group * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
            up += tl.load(bias + group * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        if LIMIT > 0:
            gate = tl.minimum(gate, LIMIT)
            up = tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
            made = up * gate * tl.sigmoid(gate * SWISH)
        else:
            made = gate * tl.sigmoid(gate) * up
        tl.store(out + row * WIDTH + column, (made * weight).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gate_back(
    gate_up: tl.tensor,
    weights: tl.tensor,
    gradient: tl.tensor,
    bias: tl.tensor,
    counts: tl.tensor,
    d_gate_up: tl.tensor,
    d_weights: tl.tensor,
    num_groups: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    LIMIT: tl.constexpr,
    SWISH: tl.constexpr,
    GROUPS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    weight = tl.load(weights + row).to(tl.float32)
    if GROUPS > 0:
        group = _group_of(counts, row, num_groups, GROUPS)
    summed = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in tl.static_range(0, WIDTH, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < WIDTH
        at = row * 2 * WIDTH + column
        gate = tl.load(gate_up + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + at + WIDTH, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(gradient + row * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        if GROUPS > 0:
            gate += tl.load(bias + group * 2 * WIDTH + column, mask=inside, other=0.0).to(tl.float32)
            up += tl.load(bias + group * 2 * WIDTH + WIDTH + column, mask=inside, other=0.0).to(tl.float32)
        d_made = given * weight
        if LIMIT > 0:
            low = tl.minimum(gate, LIMIT)
            mid = tl.minimum(tl.maximum(up, -LIMIT), LIMIT) + 1.0
            share = tl.sigmoid(low * SWISH)
            summed += given * mid * low * share
            d_gate = tl.where(gate <= LIMIT, d_made * mid * share * (1.0 + SWISH * low * (1.0 - share)), 0.0)
            d_up = tl.where(tl.abs(up) <= LIMIT, d_made * low * share, 0.0)
        else:
            share = tl.sigmoid(gate)
            summed += given * gate * share * up
            d_gate = d_made * up * share * (1.0 + gate * (1.0 - share))
            d_up = d_made * gate * share
        tl.store(d_gate_up + at, d_gate.to(d_gate_up.dtype.element_ty), mask=inside)
        tl.store(d_gate_up + at + WIDTH, d_up.to(d_gate_up.dtype.element_ty), mask=inside)
    tl.store(d_weights + row, tl.sum(summed, axis=0).to(d_weights.dtype.element_ty))


def gated(gate_up: Tensor, weights: Tensor, limit: float, bias: Tensor | None, counts: Tensor | None) -> Tensor:
    """The weighted gate of every row."""
    out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
    if out.numel():
        _gate[(len(out),)](
            gate_up, weights, *_biases(gate_up, bias, counts), out, 0 if counts is None else len(counts),
            **_sizes(gate_up.shape[1] // 2, limit, bias),
        )  # fmt: skip
    return out


def gate_gradients(
    gate_up: Tensor, weights: Tensor, gradient: Tensor, limit: float, bias: Tensor | None, counts: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of gates and of weights."""
    d_gate_up, d_weights = torch.empty_like(gate_up), torch.empty_like(weights)
    if gradient.numel():
        _gate_back[(len(gradient),)](
            gate_up, weights, gradient, *_biases(gate_up, bias, counts), d_gate_up, d_weights, 0 if counts is None else len(counts),
            **_sizes(gate_up.shape[1] // 2, limit, bias),
        )  # fmt: skip
    return d_gate_up, d_weights


def _biases(gate_up: Tensor, bias: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """What the kernels are given for biases; without them another tensor, which is not read."""
    return (gate_up, gate_up) if bias is None or counts is None else (bias, counts)


def _sizes(width: int, limit: float, bias: Tensor | None) -> dict[str, object]:
    block = min(triton.next_power_of_2(width), MOST_COLUMNS)
    groups = 0 if bias is None else triton.next_power_of_2(len(bias))
    warps = min(max(block // 256, 1), 4)
    return {"WIDTH": width, "BLOCK": block, "LIMIT": float(limit), "SWISH": SWISH, "GROUPS": groups, "num_warps": warps}


@triton.jit
def _sum_groups(
    rows: tl.tensor, counts: tl.tensor, out: tl.tensor, width: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUPS: tl.constexpr
) -> None:
    group = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    before = tl.arange(0, GROUPS)
    start = tl.sum(tl.load(counts + before, mask=before < group, other=0), axis=0)
    count = tl.load(counts + group)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row[:, None] < count) & (column[None, :] < width)
        total += tl.load(rows + (start + row)[:, None] * width + column[None, :], mask=there, other=0.0).to(tl.float32)
    tl.store(out + group * width + column, tl.sum(total, axis=0), mask=column < width)


def group_sums(rows: Tensor, counts: Tensor) -> Tensor:
    """The sum of the rows of each group in fp32, [groups, width]."""
    width = rows.shape[1]
    out = torch.empty(len(counts), width, dtype=torch.float32, device=rows.device)
    _sum_groups[(len(counts), triton.cdiv(width, SUM_COLUMNS))](
        rows, counts, out, width, ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS, GROUPS=triton.next_power_of_2(len(counts)), num_warps=4
    )
    return out
