"""What tests of rehearsals run on real ranks and on stand-ins alike: one step whose messages, or whose memory, is counted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from on_ranks import FlowKey, axes_by_group, axes_of
from torch import Tensor

from meshwright.predict.rehearsed import RankMemory
from meshwright.train import replica as replica_module
from meshwright.train.model.compiled import compile_layers
from meshwright.train.rehearse.boundaries import Boundaries
from meshwright.train.rehearse.memory import CpuMemory
from meshwright.train.rehearse.rank import Part, Stand, counted, stand_of
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


def kept_by_a_layer(part: Part, monkeypatch: pytest.MonkeyPatch) -> float:
    """Bytes that one more layer keeps for its backward, compiled as on a GPU, counted storage by storage; weights are none of them.

    Two things that a processor keeps otherwise are counted as on a GPU: values are a copy there and not a view of the whole projection, and
    a norm that is not compiled keeps its input as it is and not in fp32.
    """
    monkeypatch.setattr(replica_module, "compiles", lambda *_: True)
    monkeypatch.setattr(replica_module, "compile_layers", partial(compile_layers, backend="aot_eager_decomp_partition"))
    model, layout = part.model, part.layout
    torch._dynamo.reset()
    with stand_in_world(part.rank, layout.num_ranks, CPU):
        stand = stand_of(part, CPU, Boundaries())
        counts = [_kept_by_layers(stand, number) for number in (1, 2)]
        stand.mesh.close()
    num_tokens = part.workload.seq_len // layout.cp
    is_view = layout.recompute != "full"
    return counts[1] - counts[0] - is_view * 2 * num_tokens * (model.query_dim + model.kv_dim) / layout.tp


def _kept_by_layers(stand: Stand, number: int) -> float:
    """Bytes that the first layers keep."""
    (chunk,), (batch,) = stand.replica.stage.chunks, stand.batch
    weights = {tensor.untyped_storage().data_ptr() for tensor in (*chunk.parameters(), *chunk.buffers())}
    found: dict[int, tuple[Tensor, float]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            is_hidden = tensor.dtype == torch.float32 and tensor.shape[-1] == chunk.model.hidden
            found[storage.data_ptr()] = tensor, storage.nbytes() / (2 if is_hidden else 1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        x = chunk.embed(batch.tokens, batch.context).requires_grad_()
        rotation = chunk.rotary(batch.context.positions, x.dtype)
        for block in chunk.blocks()[:number]:
            x = block(x, batch.context, rotation)
    return sum(size for _, size in found.values())
