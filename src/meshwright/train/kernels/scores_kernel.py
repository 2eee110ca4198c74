"""The highest scores of every row on a GPU, in one pass. The kernel is an operator of torch, so that compiled layers can contain it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ENTRIES = 2048  # scores that one program looks at


@triton.jit
def _highest(
    scores: tl.tensor,
    out: tl.tensor,
    num_rows: tl.tensor,
    width: tl.tensor,
    NUMBER: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row[:, None] < num_rows) & (column[None, :] < width)
    value = tl.load(scores + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    value = tl.where(value == value, value, -float("inf"))  # what is not a number is never higher
    free = column[None, :] < width
    for place in tl.static_range(NUMBER):
        best = tl.max(tl.where(free, value, -float("inf")), axis=1)
        is_best = free & (value == best[:, None])
        index = tl.min(tl.where(is_best, column[None, :], COLUMNS), axis=1)
        tl.store(out + row * NUMBER + place, index.to(tl.int64), mask=row < num_rows)
        free = free & (column[None, :] != index[:, None])


@triton_op("meshwright::highest", mutates_args=())
def highest(scores: Tensor, number: int) -> Tensor:
    """Indices of the highest scores along the last dimension; of equal scores the lower index comes first."""
    width = scores.shape[-1]
    num_rows = scores.numel() // width
    out = torch.empty(*scores.shape[:-1], number, dtype=torch.int64, device=scores.device)
    columns = triton.next_power_of_2(width)
    rows = max(ENTRIES // columns, 1)
    wrap_triton(_highest)[(triton.cdiv(num_rows, rows),)](
        scores, out, num_rows, width, NUMBER=number, ROWS=rows, COLUMNS=columns, num_warps=4
    )  # fmt: skip
    return out
