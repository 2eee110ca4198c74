"""AdamW over shards is torch's AdamW, with scaling, decay by shard, and a renewed copy."""

from __future__ import annotations

import pytest
import torch

from meshwright.describe.workload import Training
from meshwright.train.parallel.optimizer import AdamW
from meshwright.train.parallel.shards import Cut, Shard

TRAINING = Training(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


def shard_of(values: torch.Tensor, *, decays: bool, copy: torch.Tensor | None = None) -> Shard:
    cut = Cut(name="w", shape=(len(values),), start=(0,), local=(len(values),))
    return Shard(values=values, gradient=None, spans=((cut, 0, len(values), 0),), decays=decays, is_partial=False, copies=1, copy=copy)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("decays", [True, False])
def test_steps_are_those_of_torch(decays: bool) -> None:
    start = torch.randn(100)
    shard = shard_of(start.clone(), decays=decays)
    ours = AdamW([shard], TRAINING)
    theirs = torch.nn.Parameter(start.clone())
    wanted = torch.optim.AdamW([theirs], lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1 if decays else 0.0)
    for number in range(5):
        gradient = torch.randn(100)
        shard.gradient, theirs.grad = 4 * gradient, gradient
        ours.step(1e-2 / (number + 1), scale=0.25)
        wanted.param_groups[0]["lr"] = 1e-2 / (number + 1)
        wanted.step()
    torch.testing.assert_close(shard.values, theirs.detach())
    assert ours.num_updates == 5


@pytest.mark.parametrize("device", DEVICES)
def test_the_copy_follows_in_its_own_precision(device: str) -> None:
    copy = torch.zeros(8, dtype=torch.bfloat16, device=device)
    shard = shard_of(torch.randn(8, device=device), decays=True, copy=copy)
    shard.gradient = torch.randn(8, device=device)
    AdamW([shard], TRAINING).step(1e-2, scale=1.0)
    assert torch.equal(copy, shard.values.to(torch.bfloat16))


def test_a_shard_without_gradient_stays() -> None:
    shard = shard_of(torch.ones(4), decays=True)
    AdamW([shard], TRAINING).step(1e-2, scale=1.0)
    assert torch.equal(shard.values, torch.ones(4))
