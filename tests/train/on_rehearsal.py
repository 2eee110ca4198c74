"""What tests of rehearsals run on real ranks and on stand-ins alike: one step whose messages, or whose memory, is counted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from on_ranks import FlowKey, axes_by_group, axes_of

from meshwright.predict.rehearsed import RankMemory
from meshwright.train.rehearse.boundaries import Boundaries
from meshwright.train.rehearse.memory import CpuMemory
from meshwright.train.rehearse.rank import Part, counted, stand_of
from meshwright.train.rehearse.stand_in import stand_in_world

CPU = torch.device("cpu")
NUM_TRIES = 2


@dataclass(frozen=True)
class Exchanged:
    """What a rehearsed rank exchanged in a step."""

    stage: int
    shard: int
    flows: dict[FlowKey, int]  # how often
    shared: dict[str, str]  # as in `on_ranks.Sent`
    num_sums: int
    is_finite: bool


def exchanged(part: Part) -> Exchanged:
    """What stand-ins were asked for in one step of a rank."""
    with stand_in_world(part.rank, part.layout.num_ranks, CPU) as ledger:
        stand = stand_of(part, CPU, Boundaries())
        replica, mesh = stand.replica, stand.mesh
        replica.ready()
        ledger.sent.clear()
        sums = replica.step(stand.batch, 1e-3)
        replica.ready()
        named = axes_by_group(mesh)
        sizes = {axis.group.group_name: axis.size for axis in axes_of(mesh) if axis.group is not None}
        flows: Counter[FlowKey] = Counter()
        for (group, kind, payload), count in ledger.sent.items():
            flows["+".join(named[group]), kind, sizes[group], payload] += count
        shared = {axis: "+".join(axes) for axes in named.values() for axis in axes}
        found = Exchanged(
            mesh.pp.index,
            mesh.shard.index if part.layout.zero_stage else 0,
            dict(flows),
            shared,
            ledger.num_sums,
            sums.result().is_finite and all(bool(shard.values.isfinite().all()) for shard in replica.shards),
        )
        mesh.close()
    return found


def rehearsed_memory(part: Part) -> RankMemory:
    """The memory of a step on a stand-in."""
    marks = Boundaries()
    counter = CpuMemory(lambda: marks.doing)
    with stand_in_world(part.rank, part.layout.num_ranks, CPU):
        return _counted(part, marks, counter)


def memory_among_others(part: Part) -> RankMemory:
    """The memory of the same step on a rank whose others exist, the least of some tries; every rank must call it.

    The threads of gloo let go of tensors some time after a collective is over, later on a busy machine.
    """
    own = replace(part, rank=dist.get_rank())
    found = []
    for _ in range(NUM_TRIES):
        marks = Boundaries()
        found.append(_counted(own, marks, Patient(lambda marks=marks: marks.doing)))
    return min(found, key=lambda memory: memory.peak_bytes)


class Patient(CpuMemory):
    """A count that gives others time before it looks."""

    def note(self) -> None:
        """An operation begins here, and the one before it ends."""
        time.sleep(0.01)
        super().note()


def _counted(part: Part, marks: Boundaries, counter: CpuMemory) -> RankMemory:
    with counter:
        stand = stand_of(part, CPU, marks)
        stand.step()
        found = counted(stand, counter)
    stand.replica.ready()
    stand.mesh.close()
    return found
