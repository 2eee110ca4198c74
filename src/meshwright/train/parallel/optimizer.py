"""AdamW over this rank's shards: on a processor torch's fused one, on a GPU one pass that also scales gradients and renews weights.

On a GPU the update is bound by bytes. One kernel reads gradient, value and both moments once, and writes value, moments and the copy that
the products read; scaling by the norm and casting are free there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from meshwright.describe.workload import Training
from meshwright.train.parallel.shards import Shard

BLOCK = 2048


class AdamW:
    """The optimizer of one rank. Loshchilov and Hutter 2019 (arXiv:1711.05101), with bias correction."""

    def __init__(self, shards: Sequence[Shard], training: Training) -> None:
        self.shards, self.training = shards, training
        self.num_updates = 0
        self.means = [torch.zeros_like(shard.values) for shard in shards]
        self.squares = [torch.zeros_like(shard.values) for shard in shards]
        self._step = _step_by_kernel if _has_kernel(shards) else _step_by_torch

    def step(self, learning_rate: float, scale: float) -> None:
        """Apply the shards' gradients times `scale`, and renew the copies that the products read."""
        self.num_updates += 1
        for shard, mean, square in zip(self.shards, self.means, self.squares, strict=True):
            if shard.gradient is not None:
                decay = self.training.weight_decay if shard.decays else 0.0
                self._step(shard, mean, square, self.training, learning_rate, decay, scale, self.num_updates)


def _step_by_torch(
    shard: Shard, mean: Tensor, square: Tensor, training: Training, rate: float, decay: float, scale: float, number: int
) -> None:
    """One shard's update by torch's own fused AdamW."""
    gradient = shard.gradient.mul_(scale).view_as(shard.values)
    adamw(
        [shard.values],
        [gradient.to(shard.values.dtype)],
        [mean],
        [square],
        [],
        [torch.tensor(float(number - 1), device=shard.values.device)],
        fused=True,
        amsgrad=False,
        beta1=training.beta1,
        beta2=training.beta2,
        lr=rate,
        weight_decay=decay,
        eps=training.epsilon,
        maximize=False,
    )
    shard.renew_copy()


def _step_by_kernel(
    shard: Shard, mean: Tensor, square: Tensor, training: Training, rate: float, decay: float, scale: float, number: int
) -> None:
    """One shard's update by the kernel below."""
    count = shard.values.numel()
    has_copy = shard.copy is not None
    _kernel()[((count + BLOCK - 1) // BLOCK,)](
        shard.values,
        shard.copy if has_copy else shard.values,
        shard.gradient,
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
        HAS_COPY=has_copy,
        BLOCK_SIZE=BLOCK,
    )


def _has_kernel(shards: Sequence[Shard]) -> bool:
    if not shards or shards[0].values.device.type != "cuda":
        return False
    from importlib.util import find_spec

    return find_spec("triton") is not None


@cache
def _kernel() -> Any:
    """The kernel, compiled when a GPU first asks for it: triton is not there without one."""
    import triton
    import triton.language as tl

    @triton.jit
    def update(
        values, copy, gradients, means, squares, count, scale, rate, decay, beta1, beta2, epsilon, left1, left2,
        HAS_COPY: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ):  # fmt: skip
        at = tl.program_id(0).to(tl.int64) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        inside = at < count
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

    return update
