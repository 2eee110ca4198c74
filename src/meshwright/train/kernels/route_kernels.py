"""Sorting visits by their destination, copying rows there, and adding up what comes back: one pass each on a GPU.

Nothing is added up by atomic operations, so results do not change from run to run.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SORTED_TOGETHER = 16384  # entries of the table of keys and destinations that one program compares
MOST_KEYS = 128  # that one program sorts
ROW_BLOCK = 2048  # columns of a row that one program copies or adds up


@triton.jit
def _count(
    keys: tl.tensor,
    found: tl.tensor,
    num_keys: tl.tensor,
    num_destinations: tl.tensor,
    num_blocks: tl.tensor,
    KEYS: tl.constexpr,
    DESTINATIONS: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    at = block * KEYS + tl.arange(0, KEYS)
    key = tl.load(keys + at, mask=at < num_keys, other=-2).to(tl.int32)
    key = tl.where(key == -1, num_destinations, key)
    destination = tl.arange(0, DESTINATIONS)
    hits = tl.sum((key[:, None] == destination[None, :]).to(tl.int32), axis=0)
    tl.store(found + destination * num_blocks + block, hits, mask=destination <= num_destinations)


@triton.jit
def _scan(found: tl.tensor, totals: tl.tensor, num_blocks: tl.tensor, BLOCKS: tl.constexpr) -> None:
    destination = tl.program_id(0)
    at = tl.arange(0, BLOCKS)
    counts = tl.load(found + destination * num_blocks + at, mask=at < num_blocks, other=0)
    tl.store(found + destination * num_blocks + at, tl.cumsum(counts, axis=0) - counts, mask=at < num_blocks)
    tl.store(totals + destination, tl.sum(counts, axis=0).to(tl.int64))


@triton.jit
def _place(
    keys: tl.tensor,
    found: tl.tensor,
    totals: tl.tensor,
    order: tl.tensor,
    positions: tl.tensor,
    num_keys: tl.tensor,
    num_destinations: tl.tensor,
    num_blocks: tl.tensor,
    KEYS: tl.constexpr,
    DESTINATIONS: tl.constexpr,
) -> None:
    block = tl.program_id(0)
    lane = tl.arange(0, KEYS)
    at = block * KEYS + lane
    key = tl.load(keys + at, mask=at < num_keys, other=-2).to(tl.int32)
    key = tl.where(key == -1, num_destinations, key)
    destination = tl.arange(0, DESTINATIONS)
    there = destination <= num_destinations
    total = tl.load(totals + destination, mask=there, other=0).to(tl.int32)
    start = tl.cumsum(total, axis=0) - total + tl.load(found + destination * num_blocks + block, mask=there, other=0)
    mine = tl.sum(tl.where(key[:, None] == destination[None, :], start[None, :], 0), axis=1)
    earlier = (key[:, None] == key[None, :]) & (lane[None, :] < lane[:, None])
    position = mine + tl.sum(earlier.to(tl.int32), axis=1)
    tl.store(positions + at, position.to(tl.int64), mask=at < num_keys)
    tl.store(order + position, at.to(tl.int64), mask=at < num_keys)


def placed(keys: Tensor, num_destinations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys [slots] in a stable order of their destinations, the place of each in it, and how many each destination has.

    A key of -1 has no destination, and comes last.
    """
    num_keys = keys.numel()
    order, positions = torch.empty_like(keys), torch.empty_like(keys)
    totals = torch.zeros(num_destinations + 1, dtype=torch.int64, device=keys.device)
    if not num_keys:
        return order, positions, totals[:num_destinations]
    width = triton.next_power_of_2(num_destinations + 1)
    size = max(min(MOST_KEYS, SORTED_TOGETHER // width), 16)
    num_blocks = triton.cdiv(num_keys, size)
    found = torch.empty(num_destinations + 1, num_blocks, dtype=torch.int32, device=keys.device)
    sizes = {"KEYS": size, "DESTINATIONS": width, "num_warps": 8}
    _count[(num_blocks,)](keys, found, num_keys, num_destinations, num_blocks, **sizes)
    _scan[(num_destinations + 1,)](found, totals, num_blocks, BLOCKS=triton.next_power_of_2(num_blocks), num_warps=4)
    _place[(num_blocks,)](keys, found, totals, order, positions, num_keys, num_destinations, num_blocks, **sizes)
    return order, positions, totals[:num_destinations]


@triton.jit
def _copy_rows(
    x: tl.tensor, order: tl.tensor, out: tl.tensor, width: tl.tensor, num_blocks: tl.tensor, SLOTS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    program = tl.program_id(0)
    copy = (program // num_blocks).to(tl.int64)
    column = program % num_blocks * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(order + copy) // SLOTS
    value = tl.load(x + row * width + column, mask=column < width)
    tl.store(out + copy * width + column, value, mask=column < width)


def copied_rows(x: Tensor, order: Tensor, num_slots: int) -> Tensor:
    """For every slot of `order` the row of `x` that it belongs to, if every row has `num_slots`."""
    out = x.new_empty(len(order), x.shape[1])
    if out.numel():
        block = min(triton.next_power_of_2(x.shape[1]), ROW_BLOCK)
        blocks = triton.cdiv(x.shape[1], block)
        _copy_rows[(blocks * len(order),)](x, order, out, x.shape[1], blocks, SLOTS=num_slots, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _sum_rows(
    copies: tl.tensor,
    positions: tl.tensor,
    out: tl.tensor,
    num_copies: tl.tensor,
    width: tl.tensor,
    num_blocks: tl.tensor,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    column = program % num_blocks * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for slot in tl.static_range(SLOTS):
        position = tl.load(positions + row * SLOTS + slot)
        total += tl.load(copies + position * width + column, mask=(column < width) & (position < num_copies), other=0.0).to(tl.float32)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=column < width)


def summed_rows(copies: Tensor, positions: Tensor) -> Tensor:
    """For every row of `positions` [rows, slots] the sum of these rows of `copies`, in fp32, slot after slot."""
    out = copies.new_empty(len(positions), copies.shape[1])
    if out.numel():
        block = min(triton.next_power_of_2(copies.shape[1]), ROW_BLOCK)
        blocks = triton.cdiv(copies.shape[1], block)
        _sum_rows[(blocks * len(positions),)](
            copies, positions, out, len(copies), copies.shape[1], blocks,
            SLOTS=positions.shape[1], BLOCK=block, num_warps=4,
        )  # fmt: skip
    return out
