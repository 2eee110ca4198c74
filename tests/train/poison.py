"""Numbers that are none, put into a step on one gloo rank."""

from __future__ import annotations

import math
from typing import Any

import torch
from parity import LLAMA, WORKLOAD, batch_of, replica_of
from torch import Tensor

from meshwright.layout import Layout
from meshwright.train.health.nonfinite import find_culprit
from meshwright.train.replica import Replica


def culprit_of(layout: Layout, kind: str, rank: int) -> tuple[str, bool]:
    """The diagnosis of a step in which `rank` has a NaN of some kind, and whether its weights are as they were."""
    with replica_of(LLAMA, WORKLOAD, layout) as (replica, mesh):
        batch = batch_of(0, LLAMA, WORKLOAD, mesh)
        if mesh.rank == rank:
            KINDS[kind](replica)
        before = [shard.values.detach().clone() for shard in replica.shards]
        result = replica.gradients(batch)
        if kind == "sum":
            if mesh.rank == rank:
                replica.shards[0].gradient[0] = math.nan
        else:
            assert not result.is_finite
        diagnosis = find_culprit(replica, batch, result)
        same = all(torch.equal(a.nan_to_num(9e9), b.values.nan_to_num(9e9)) for a, b in zip(before, replica.shards, strict=True))
        return diagnosis, same


def transient_of(layout: Layout, kind: str, rank: int) -> str:
    """The diagnosis of a step in which `rank` has a NaN of some kind once, and not when the step is run again."""
    with replica_of(LLAMA, WORKLOAD, layout) as (replica, mesh):
        batch = batch_of(0, LLAMA, WORKLOAD, mesh)
        if mesh.rank == rank:
            KINDS[kind](replica)
        result = replica.gradients(batch)
        assert not result.is_finite
        for chunk in replica.stage.chunks:
            for module in chunk.modules():
                module._forward_hooks.clear()
        for parameter in (parameter for chunk in replica.stage.chunks for parameter in chunk.parameters()):
            parameter._backward_hooks = None
        return find_culprit(replica, batch, result)


def _layer(replica: Replica) -> Any:
    return next(iter(replica.stage.chunks[0].layers.values()))


def _in_second(replica: Replica) -> bool:
    return "micro-batch 1," in replica.mesh.marks.doing


def _weight(replica: Replica) -> None:
    shard = next(shard for shard in replica.shards if any("layers." in cut.name for cut, *_ in shard.spans))
    offset = next(offset for cut, _, _, offset in shard.spans if "layers." in cut.name)
    with torch.no_grad():
        shard.values[offset] = math.nan
    for data in replica.data:
        for bucket in getattr(data, "buckets", ()):
            bucket.weights[bucket.mine].copy_(bucket.shard.values)


def _forward(replica: Replica) -> None:
    def spoil(module: object, inputs: object, output: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        past, normed = output
        return (past, normed * math.nan) if _in_second(replica) else None

    _layer(replica).mlp_norm.register_forward_hook(spoil)


def _backward(replica: Replica) -> None:
    def spoil(module: object, inputs: object, output: tuple[Tensor, Tensor]) -> None:
        output[1].register_hook(lambda gradient: gradient * math.inf if _in_second(replica) else gradient)

    _layer(replica).mlp_norm.register_forward_hook(spoil)


def _weight_gradient(replica: Replica) -> None:
    def spoil(gradient: Tensor) -> Tensor | None:
        if not _in_second(replica):
            return None
        gate, up = gradient.chunk(2)
        return torch.cat((gate, up * math.nan))

    _layer(replica).mlp.gate_up.weight.register_hook(spoil)


KINDS = {"weight": _weight, "forward": _forward, "backward": _backward, "weight gradient": _weight_gradient, "sum": lambda replica: None}
