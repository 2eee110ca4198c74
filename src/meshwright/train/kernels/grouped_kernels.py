"""Grouped products of our own on a GPU, for where torch's are not right: group sizes stay on the device, and the host waits for nothing.

One program computes one tile of the result. Programs find their group from the sizes; there are as many as the sizes can ask for at most,
and those beyond the last tile do nothing. All sums are in fp32 and in one order, whatever tiles are chosen.
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl
from torch import Tensor

DEPTH_BYTES = 128  # of the summed dimension that is loaded at a time
SMALL = triton.Config({"TALL": 64, "WIDE": 64}, num_warps=4, num_stages=3)
# The first also serves where nothing can be timed. Depths are equal, so that the choice does not change the order of sums.
TILES = [
    SMALL,
    triton.Config({"TALL": 128, "WIDE": 128}, num_warps=8, num_stages=3),
    triton.Config({"TALL": 128, "WIDE": 256}, num_warps=8, num_stages=3),
]
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _fitting(configs: list[triton.Config], arguments: dict[str, object], **_: object) -> list[triton.Config]:
    """Products in fp32 do not use tensor cores: only small tiles fit in registers."""
    factor = arguments.get("rows")
    return configs if isinstance(factor, Tensor) and factor.dtype == torch.bfloat16 else configs[:1]


def _tuned(key: list[str]) -> object:
    return triton.autotune(TILES[:1] if IS_INTERPRETED else TILES, key=key, prune_configs_by={"early_config_prune": _fitting})


@triton.jit
def _product(
    rows: tl.tensor,
    weight: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    num_groups: tl.tensor,
    group_stride: tl.tensor,
    out_stride: tl.tensor,
    in_stride: tl.tensor,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    GROUPS: tl.constexpr,
    DEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    across: tl.constexpr = (NUM_OUT + WIDE - 1) // WIDE
    tile = program // across
    at = tl.arange(0, GROUPS)
    count = tl.load(counts + at, mask=at < num_groups, other=0)
    tiles = (count + TALL - 1) // TALL
    ends = tl.cumsum(tiles, axis=0)
    group = tl.sum((ends <= tile).to(tl.int64), axis=0)
    if group < num_groups:
        start = tl.sum(tl.where(at < group, count, 0), axis=0)
        size = tl.sum(tl.where(at == group, count, 0), axis=0)
        first = (tile - tl.sum(tl.where(at == group, ends - tiles, 0), axis=0)) * TALL
        row = first + tl.arange(0, TALL)
        column = program % across * WIDE + tl.arange(0, WIDE)
        depth = tl.arange(0, DEEP)
        left = rows + (start + row)[:, None] * NUM_IN + depth[None, :]
        right = weight + group * group_stride + column[None, :] * out_stride + depth[:, None] * in_stride
        total = tl.zeros((TALL, WIDE), dtype=tl.float32)
        for done in range(0, NUM_IN, DEEP):
            inside = done + depth < NUM_IN
            a = tl.load(left + done, mask=(row < size)[:, None] & inside[None, :], other=0.0)
            b = tl.load(right + done * in_stride, mask=(column < NUM_OUT)[None, :] & inside[:, None], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
        there = (row < size)[:, None] & (column < NUM_OUT)[None, :]
        tl.store(out + (start + row)[:, None] * NUM_OUT + column[None, :], total.to(out.dtype.element_ty), mask=there)


@triton.jit
def _weight_gradient(
    gradient: tl.tensor,
    rows: tl.tensor,
    counts: tl.tensor,
    out: tl.tensor,
    NUM_OUT: tl.constexpr,
    NUM_IN: tl.constexpr,
    GROUPS: tl.constexpr,
    DEEP: tl.constexpr,
    PRECISION: tl.constexpr,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    across: tl.constexpr = (NUM_IN + WIDE - 1) // WIDE
    down: tl.constexpr = (NUM_OUT + TALL - 1) // TALL
    group = (tl.program_id(0) // (across * down)).to(tl.int64)
    tile = tl.program_id(0) % (across * down)
    at = tl.arange(0, GROUPS)
    start = tl.sum(tl.load(counts + at, mask=at < group, other=0), axis=0)
    size = tl.load(counts + group)
    line = tile // across * TALL + tl.arange(0, TALL)
    column = tile % across * WIDE + tl.arange(0, WIDE)
    depth = tl.arange(0, DEEP)
    total = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for done in range(0, size, DEEP):
        row = done + depth
        inside = row < size
        a = tl.load(
            gradient + (start + row)[:, None] * NUM_OUT + line[None, :], mask=inside[:, None] & (line < NUM_OUT)[None, :], other=0.0
        )
        b = tl.load(rows + (start + row)[:, None] * NUM_IN + column[None, :], mask=inside[:, None] & (column < NUM_IN)[None, :], other=0.0)
        total = tl.dot(tl.trans(a), b, total, input_precision=PRECISION)
    there = (line < NUM_OUT)[:, None] & (column < NUM_IN)[None, :]
    place = out + (group * NUM_OUT + line)[:, None] * NUM_IN + column[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=there)


PRODUCT = _tuned(["NUM_OUT", "NUM_IN", "GROUPS"])(_product)  # type: ignore[operator]
WEIGHT_GRADIENT = _tuned(["NUM_OUT", "NUM_IN", "GROUPS"])(_weight_gradient)  # type: ignore[operator]


def grouped_product(rows: Tensor, weight: Tensor, counts: Tensor) -> Tensor:
    """The product of each row [rows, in] with the matrix of its group [groups, out, in]; rows are sorted by group."""
    rows = rows.contiguous()
    num_groups, num_out, num_in = weight.shape
    out = rows.new_empty(len(rows), num_out)
    if len(rows):
        PRODUCT[lambda tiles: ((triton.cdiv(len(rows), tiles["TALL"]) + num_groups) * triton.cdiv(num_out, tiles["WIDE"]),)](
            rows, weight, counts, out, num_groups, *weight.stride(),
            NUM_OUT=num_out, NUM_IN=num_in, GROUPS=triton.next_power_of_2(num_groups), **_numbers(rows),
        )  # fmt: skip
    return out


def grouped_weight_gradient(gradient: Tensor, rows: Tensor, counts: Tensor) -> Tensor:
    """The gradients of the matrices, [groups, out, in]: zeros for a group without rows."""
    gradient, rows = gradient.contiguous(), rows.contiguous()
    (num_groups,), num_out, num_in = counts.shape, gradient.shape[1], rows.shape[1]
    out = rows.new_empty(num_groups, num_out, num_in)
    WEIGHT_GRADIENT[lambda tiles: (num_groups * triton.cdiv(num_out, tiles["TALL"]) * triton.cdiv(num_in, tiles["WIDE"]),)](
        gradient, rows, counts, out, NUM_OUT=num_out, NUM_IN=num_in, GROUPS=triton.next_power_of_2(num_groups), **_numbers(rows)
    )
    return out


def _numbers(rows: Tensor) -> dict[str, object]:
    return {"DEEP": DEPTH_BYTES // rows.element_size(), "PRECISION": "ieee" if rows.dtype == torch.float32 else "tf32"}
