"""AdamW's update of one shard on a GPU: one pass over gradient, value and both moments, which also updates the copy for products."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from meshwright.describe.workload import Training

BLOCK = 2048


@triton.jit
def _update(
    values: tl.tensor,
    copy: tl.tensor,
    gradients: tl.tensor,
    means: tl.tensor,
    squares: tl.tensor,
    count: tl.tensor,
    scale_at: tl.tensor,
    rate: tl.tensor,
    decay: tl.tensor,
    beta1: tl.tensor,
    beta2: tl.tensor,
    epsilon: tl.tensor,
    left1: tl.tensor,
    left2: tl.tensor,
    HAS_COPY: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    scale = tl.load(scale_at)
    inside = (at < count) & (scale == scale)  # NaN: the loss or gradients were not finite, and nothing is changed
    gradient = tl.load(gradients + at, mask=inside).to(tl.float32) * scale
    mean = tl.load(means + at, mask=inside).to(tl.float32)
    square = tl.load(squares + at, mask=inside).to(tl.float32)
    value = tl.load(values + at, mask=inside).to(tl.float32)
    mean = beta1 * mean + (1.0 - beta1) * gradient
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    value = value * (1.0 - decay) - rate * (mean / left1) / (tl.sqrt(square / left2) + epsilon)
    tl.store(means + at, mean.to(means.dtype.element_ty), mask=inside)
    tl.store(squares + at, square.to(squares.dtype.element_ty), mask=inside)
    tl.store(values + at, value.to(values.dtype.element_ty), mask=inside)
    if HAS_COPY:
        tl.store(copy + at, value.to(copy.dtype.element_ty), mask=inside)


def update(
    values: Tensor, copy: Tensor | None, gradient: Tensor, mean: Tensor, square: Tensor,
    training: Training, rate: float, decay: float, scale: Tensor, number: int,
) -> None:  # fmt: skip
    """Apply the gradient times `scale` as update `number`, and write the new values to the copy if there is one.

    `scale` is one number on the device, in fp32; if it is NaN, nothing changes.
    """
    count = values.numel()
    _update[((count + BLOCK - 1) // BLOCK,)](
        values,
        copy if copy is not None else values,
        gradient,
        mean,
        square,
        count,
        scale,
        rate,
        rate * decay,
        training.beta1,
        training.beta2,
        training.epsilon,
        1.0 - training.beta1**number,
        1.0 - training.beta2**number,
        HAS_COPY=copy is not None,
        BLOCK_SIZE=BLOCK,
    )
