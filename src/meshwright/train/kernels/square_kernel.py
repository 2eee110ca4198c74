"""Sums of squares, sums and largest values on a GPU: one pass, added up in a fixed order, so that a run can be repeated bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
PROGRAMS = 1056  # eight for each processor of a Hopper GPU


@triton.jit
def _measures(values: tl.tensor, found: tl.tensor, count: tl.tensor, STRIDE: tl.constexpr, BLOCK_SIZE: tl.constexpr) -> None:
    program = tl.program_id(0)
    squares = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    largest = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(program.to(tl.int64) * BLOCK_SIZE, count, tl.num_programs(0) * BLOCK_SIZE):
        at = start + tl.arange(0, BLOCK_SIZE)
        value = tl.load(values + at, mask=at < count, other=0.0).to(tl.float32)
        squares += value * value
        total += value
        largest = tl.maximum(largest, tl.abs(value))
    tl.store(found + program, tl.sum(squares, axis=0))
    tl.store(found + STRIDE + program, tl.sum(total, axis=0))
    tl.store(found + 2 * STRIDE + program, tl.max(largest, axis=0))


def measures(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares, the sum and the largest absolute value of each tensor, [tensors, 3], in fp64."""
    found = torch.zeros(len(tensors), 3, PROGRAMS, dtype=torch.float32, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        programs = min(PROGRAMS, triton.cdiv(tensor.numel(), BLOCK))
        _measures[(programs,)](tensor, found[number], tensor.numel(), STRIDE=PROGRAMS, BLOCK_SIZE=BLOCK, num_warps=8)
    return torch.cat((found[:, :2].double().sum(dim=2), found[:, 2:].amax(dim=2).double()), dim=1)


def square_sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each tensor, in fp64."""
    return measures(tensors)[:, 0]
