"""AdamW on this rank's shards: on a processor torch's fused AdamW, on a GPU one kernel that also scales gradients and updates weights.

On a GPU the time of the update is limited by the bytes it moves. One kernel reads gradient, value and both moments once, and writes value,
moments and the copy that the products read. Scaling by the norm and casting then cost no additional time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from meshwright.describe.workload import Training
from meshwright.train.parallel.shards import Shard


class AdamW:
    """The optimizer of one rank. Loshchilov and Hutter 2019 (arXiv:1711.05101), with bias correction."""

    def __init__(self, shards: Sequence[Shard], training: Training) -> None:
        self.shards, self.training = shards, training
        self.num_updates = 0
        self.means = [torch.zeros_like(shard.values) for shard in shards]
        self.squares = [torch.zeros_like(shard.values) for shard in shards]
        self._step = _step_by_kernel if _has_kernel(shards) else _step_by_torch

    def step(self, learning_rate: float, scale: float) -> None:
        """Apply the gradients of the shards times `scale`, and update the copies that the products read."""
        self.num_updates += 1
        for shard, mean, square in zip(self.shards, self.means, self.squares, strict=True):
            if shard.gradient is not None:
                decay = self.training.weight_decay if shard.decays else 0.0
                self._step(shard, mean, square, self.training, learning_rate, decay, scale, self.num_updates)


def _step_by_torch(
    shard: Shard, mean: Tensor, square: Tensor, training: Training, rate: float, decay: float, scale: float, number: int
) -> None:
    """One shard's update by torch's own fused AdamW."""
    assert shard.gradient is not None, "a shard without a gradient is not updated"
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
    """The update of one shard by our kernel."""
    from meshwright.train.kernels.adamw_kernel import update  # triton is not installed without a GPU

    assert shard.gradient is not None, "a shard without a gradient is not updated"
    update(shard.values, shard.copy, shard.gradient, mean, square, training, rate, decay, scale, number)


def _has_kernel(shards: Sequence[Shard]) -> bool:
    return bool(shards) and shards[0].values.is_cuda and find_spec("triton") is not None
