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
        self.scales_on_device = _has_kernel(shards)

    def step(self, learning_rate: float, scale: float | Tensor) -> None:
        """Apply the shards' gradients times `scale`, and renew the copies that the products read.

        Where the optimizer scales on its device, `scale` may be a tensor there, and nothing changes where that is NaN.
        """
        self.num_updates += 1
        scale = _on_device(scale, self.shards[0].values.device) if self.scales_on_device else scale
        update = _step_by_kernel if self.scales_on_device else _step_by_torch
        for shard, mean, square in zip(self.shards, self.means, self.squares, strict=True):
            if shard.gradient is not None:
                decay = self.training.weight_decay if shard.decays else 0.0
                update(shard, mean, square, self.training, learning_rate, decay, scale, self.num_updates)


def _step_by_torch(
    shard: Shard, mean: Tensor, square: Tensor, training: Training, rate: float, decay: float, scale: float | Tensor, number: int
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
    shard: Shard, mean: Tensor, square: Tensor, training: Training, rate: float, decay: float, scale: float | Tensor, number: int
) -> None:
    """The update of one shard by our kernel."""
    from meshwright.train.kernels.adamw_kernel import update  # triton is not installed without a GPU

    assert isinstance(scale, Tensor), "the kernel reads its scale on the device"
    assert shard.gradient is not None, "a shard without a gradient is not updated"
    update(shard.values, shard.copy, shard.gradient, mean, square, training, rate, decay, scale, number)


def _on_device(scale: float | Tensor, device: torch.device) -> Tensor:
    """The scale as the kernel reads it; written there by a kernel too, since a copy from the host would wait for all work before it."""
    return scale if isinstance(scale, Tensor) else torch.full((), scale, dtype=torch.float32, device=device)


def _has_kernel(shards: Sequence[Shard]) -> bool:
    return bool(shards) and shards[0].values.is_cuda and find_spec("triton") is not None
