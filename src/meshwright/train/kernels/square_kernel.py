"""Sums of squares on a GPU: one pass, whose partial sums are added in a fixed order, so that a run can be repeated bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 8192
PROGRAMS = 1056  # eight for each processor of a Hopper GPU


@triton.jit
def _squares(values: tl.tensor, sums: tl.tensor, count: tl.tensor, BLOCK_SIZE: tl.constexpr) -> None:
    program = tl.program_id(0)
    total = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(program.to(tl.int64) * BLOCK_SIZE, count, tl.num_programs(0) * BLOCK_SIZE):
        at = start + tl.arange(0, BLOCK_SIZE)
        value = tl.load(values + at, mask=at < count, other=0.0).to(tl.float32)
        total += value * value
    tl.store(sums + program, tl.sum(total, axis=0))


def square_sums(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of squares of each tensor, in fp64."""
    sums = torch.zeros(len(tensors), PROGRAMS, dtype=torch.float32, device=tensors[0].device)
    for number, tensor in enumerate(tensors):
        programs = min(PROGRAMS, triton.cdiv(tensor.numel(), BLOCK))
        _squares[(programs,)](tensor, sums[number], tensor.numel(), BLOCK_SIZE=BLOCK, num_warps=8)
    return sums.double().sum(dim=1)
