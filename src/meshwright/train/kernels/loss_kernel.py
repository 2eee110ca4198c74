"""The loss of a block of logits in one kernel on a GPU: two passes over each row, of which the second reads from the cache.

A row of 128,256 classes in bf16 is 256 kB, and each of 132 processors works on one row at a time: 34 MB, which fits into the second-level
cache. So the logits are read from memory once, and their gradient is written once, in the same place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from meshwright.train.data.samples import IGNORED_LABEL

BLOCK = 8192
NUM_WARPS = 16
LOWEST = tl.constexpr(-1e30)  # start of a running maximum: finite, so that differences are never NaN


@triton.jit
def _score(
    logits: tl.tensor, labels: tl.tensor, losses: tl.tensor, num_classes: tl.tensor, IGNORED: tl.constexpr, BLOCK_SIZE: tl.constexpr
) -> None:
    row = tl.program_id(0)
    label = tl.load(labels + row)
    here = logits + row.to(tl.int64) * num_classes
    counts = label != IGNORED
    wanted = tl.where(counts, label, 0)
    chosen = tl.load(here + wanted).to(tl.float32)  # before the row is overwritten: the reductions below make all warps wait for this
    at = tl.arange(0, BLOCK_SIZE)
    largest = LOWEST
    total = 0.0
    for start in range(0, num_classes, BLOCK_SIZE):
        inside = start + at < num_classes
        scores = tl.load(here + start + at, mask=inside, other=LOWEST).to(tl.float32)
        above = tl.maximum(largest, tl.max(scores, axis=0))
        total = total * tl.exp(largest - above) + tl.sum(tl.exp(scores - above), axis=0)
        largest = above
    log_sum = largest + tl.log(total)
    tl.store(losses + row, tl.where(counts, log_sum - chosen, 0.0))
    factor = tl.where(counts, 1.0, 0.0)
    for start in range(0, num_classes, BLOCK_SIZE):
        inside = start + at < num_classes
        scores = tl.load(here + start + at, mask=inside).to(tl.float32)
        tl.store(here + start + at, (tl.exp(scores - log_sum) * factor).to(logits.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # the element of the label is written again, after all others
    tl.store(here + wanted, ((tl.exp(chosen - log_sum) - 1.0) * factor).to(logits.dtype.element_ty))


def score_in_place(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of some rows; its gradient with respect to their logits overwrites them."""
    rows, num_classes = logits.shape
    losses = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _score[(rows,)](logits, labels, losses, num_classes, IGNORED=IGNORED_LABEL, BLOCK_SIZE=BLOCK, num_warps=NUM_WARPS)
    return losses.sum(), logits
