"""What tests run on gloo ranks beside whole steps: whom a rank shares groups with, what it sends, when, and how long it waits."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from parity import TRAINING, batch_of, replica_of
from torch.utils._python_dispatch import TorchDispatchMode

from meshwright.describe.model import Model
from meshwright.describe.workload import Training, Workload
from meshwright.layout import AXES, Layout
from meshwright.predict.traffic import EXCHANGE, GATHER, MESSAGE, REDUCE, SCATTER, SWITCH
from meshwright.train.model.experts import ExpertLayer
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.mesh import Mesh, _Maker, make_mesh

# The argument that holds the whole payload, and the kind of flow, by the operator's name.
OPERATORS = {
    "c10d::_allgather_base_": (0, GATHER),
    "c10d::_reduce_scatter_base_": (1, SCATTER),
    "c10d::allreduce_": (0, REDUCE),
    "c10d::alltoall_base_": (0, SWITCH),
    "c10d::send": (0, MESSAGE),
}
DEALT = "c10d::alltoall_base_"  # output, input, group, and for each rank how many rows come from it and go to it
INCOMING = "c10d::recv_"  # counted where it is sent
PRODUCT = "aten::mm"

FlowKey = tuple[str, str, int, int]  # axis, kind, ranks, payload in bytes


@dataclass(frozen=True)
class Sent:
    """What one rank sent in a step."""

    stage: int
    shard: int  # this rank's place among those who share a state
    flows: dict[FlowKey, int]  # how often
    shared: dict[str, str]  # axes whose group is another axis's too, and the name that both are counted under
    num_control: int  # sums of loss and norm over all ranks
    experts: tuple[int, ...] = ()  # the ranks that share out the experts with this one
    rows: tuple[tuple[int, ...], ...] = ()  # for each run of a layer with experts, how many tokens chose experts of each of them


def groups_of(layout: Layout) -> dict[str, list[int]]:
    """Ranks that this one shares a process group with, by axis, as torch.distributed knows them; and the whole world."""
    mesh = make_mesh(layout, torch.device("cpu"))
    axes = {axis: getattr(mesh, axis) for axis in (*AXES, "replicate", "shard")}
    found = {name: list(axis.ranks) for name, axis in axes.items()}
    assert all(dist.get_process_group_ranks(axis.group) == found[name] for name, axis in axes.items() if axis.group)
    mesh.close()
    return {**found, "world": list(range(dist.get_world_size()))}


class Watch(TorchDispatchMode):
    """Sees every operator that torch dispatches on this rank: those that send, and the products of matrices between them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[tuple[str, str, int]] = Counter()  # group, kind, payload in bytes
        self.num_control = 0
        self.events: list[tuple[str, str]] = []  # in order: (group, kind), or ("", PRODUCT)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == PRODUCT:
            self.events.append(("", PRODUCT))
        elif name.startswith("c10d::") and name != INCOMING:
            assert name in OPERATORS, f"{name} was sent and is not counted"
            if name == DEALT and args[4]:
                self._note_rows(args)
            else:
                self._note(*OPERATORS[name], args)
        return func(*args, **(kwargs or {}))

    def _note_rows(self, args: Any) -> None:
        """Rows that go to other ranks."""
        _, rows, boxed, _, sent, *_ = args
        group = dist.ProcessGroup.unbox(boxed)
        num_rows = sum(sent) - sent[group.rank()]
        self.sent[group.group_name, EXCHANGE, num_rows * rows[0:1].numel() * rows.element_size() if num_rows else 0] += 1

    def _note(self, position: int, kind: str, args: Any) -> None:
        payload = args[position] if isinstance(args[position], list | tuple) else [args[position]]
        boxed = next(arg for arg in args if isinstance(arg, torch.ScriptObject) and "ProcessGroup" in str(arg._type()))
        group = dist.ProcessGroup.unbox(boxed).group_name
        if payload[0].dtype == torch.float64:  # loss, tokens and norm, the only numbers in fp64
            assert group == dist.group.WORLD.group_name
            self.num_control += 1
            return
        self.sent[group, kind, sum(tensor.numel() * tensor.element_size() for tensor in payload)] += 1
        self.events.append((group, kind))


def axes_of(mesh: Mesh) -> list[Axis]:
    """The axes that a step's messages travel on."""
    of_experts = [axis for axis in (mesh.ep, mesh.expert_replicas.replicate, mesh.expert_replicas.shard) if axis.group is not None]
    return [mesh.tp, mesh.cp, mesh.pp, mesh.replicate, mesh.shard, *of_experts, *([mesh.same_keys] if mesh.same_keys else [])]


def watch_visits(replica: Any, mesh: Mesh) -> list[tuple[int, ...]]:
    """A list that is filled with the tokens that chose experts of each rank, once for each forward pass that is no repetition."""
    found: list[tuple[int, ...]] = []

    def watched(visit: Any) -> Any:
        def call(rows: Any, choice: Any, experts: Any) -> Any:
            if torch._C._current_graph_task_id() == -1:  # otherwise the backward pass computes it again
                there = choice.experts // experts.num_held
                found.append(tuple(int((there == rank // mesh.layout.etp).any(dim=1).sum()) for rank in range(mesh.ep.size)))
            return visit(rows, choice, experts)

        return call

    for chunk in replica.stage.chunks:
        for module in chunk.modules():
            if isinstance(module, ExpertLayer):
                module.visit = watched(module.visit)
    return found


def axes_by_group(mesh: Mesh) -> dict[str, list[str]]:
    """Axes of more than one rank by the name of their group. Where one axis takes all ranks, its group serves the replicas too."""
    named: dict[str, list[str]] = {}
    for axis in axes_of(mesh):
        if axis.size > 1 and axis.name not in named.setdefault(axis.group.group_name, []):
            named[axis.group.group_name].append(axis.name)
    return named


def sent_in_a_step(model: Model, workload: Workload, layout: Layout, training: Training = TRAINING) -> Sent:
    """What this rank sends in one step: forward, backward, update and the weights that follow it."""
    with replica_of(model, workload, layout, training) as (replica, mesh):
        batch, rows = batch_of(0, model, workload, mesh), watch_visits(replica, mesh)
        with Watch() as watch:
            replica.update(replica.gradients(batch), 1e-3)
            replica.ready()
        named = axes_by_group(mesh)
        sizes = {axis.group.group_name: axis.size for axis in axes_of(mesh) if axis.group}
        flows: Counter[FlowKey] = Counter()
        for (group, kind, payload), count in watch.sent.items():
            flows["+".join(named[group]), kind, sizes[group], payload] += count
        shared = {axis: "+".join(axes) for axes in named.values() for axis in axes}
        shard = mesh.shard.index if layout.zero_stage else 0
        return Sent(mesh.pp.index, shard, dict(flows), shared, watch.num_control, mesh.ep.ranks, tuple(rows))


def order_of_a_step(model: Model, workload: Workload, layout: Layout) -> list[str]:
    """What happens in one forward and backward of this rank, in order: "product" or the kind of a reduction over replicas."""
    with replica_of(model, workload, layout) as (replica, mesh):
        batch = batch_of(0, model, workload, mesh)
        with Watch() as watch:
            replica.gradients(batch)
        replicas = {axis.group.group_name for axis in (mesh.replicate, mesh.shard) if axis.group}
        reductions = [(group, kind) for group in replicas for kind in (REDUCE, SCATTER)]
        return ["product" if kind == PRODUCT else kind for group, kind in watch.events if kind == PRODUCT or (group, kind) in reductions]


def weights_of_a_step(model: Model, workload: Workload, layout: Layout) -> list[str]:
    """What happens in the first step after an update, in order: "product", or "weights" for each wait for gathered weights."""
    wait = Axis.wait
    with replica_of(model, workload, layout) as (replica, mesh):
        replica.update(replica.gradients(batch_of(0, model, workload, mesh)), 1e-3)
        with Watch() as watch:

            def noted(self: Axis, work: dist.Work | None, what: str) -> None:
                if work is not None and what == "all-gather of weights":
                    watch.events.append(("", "weights"))
                wait(self, work, what)

            Axis.wait = noted
            try:
                replica.gradients(batch_of(1, model, workload, mesh))
            finally:
                Axis.wait = wait
        waited = [kind for _, kind in watch.events if kind in (PRODUCT, "weights")]
    return ["product" if kind == PRODUCT else kind for kind in waited]


def travels_of_a_step(model: Model, workload: Workload, layout: Layout) -> list[str]:
    """What happens in one forward and backward of this rank, in order: "product", or that rows for experts "leave" or are waited for."""
    wait, start = Axis.wait, Axis.start_exchange
    with replica_of(model, workload, layout) as (replica, mesh), Watch() as watch:

        def noted_wait(self: Axis, work: dist.Work | None, what: str) -> None:
            if what == "all-to-all of tokens":
                watch.events.append(("ep", "wait"))
            wait(self, work, what)

        def noted_start(self: Axis, rows: Any, sent: Any, received: Any) -> Any:
            watch.events.append(("ep", "leave"))
            return start(self, rows, sent, received)

        Axis.wait, Axis.start_exchange = noted_wait, noted_start
        try:
            replica.gradients(batch_of(0, model, workload, mesh))
        finally:
            Axis.wait, Axis.start_exchange = wait, start
    return ["product" if kind == PRODUCT else kind for group, kind in watch.events if kind == PRODUCT or group == "ep"]


def waits_for_a_slow_rank(model: Model, workload: Workload, layout: Layout, slow_rank: int, sleep_s: float) -> dict[str, float]:
    """Seconds that this rank waits by part of a step in which `slow_rank` sleeps once, in its first layer."""
    with replica_of(model, workload, layout) as (replica, mesh):
        replica.update(replica.gradients(batch_of(0, model, workload, mesh)), 1e-3)  # groups connect when they are first used
        replica.ready()
        if mesh.rank == slow_rank:
            layer = next(iter(replica.stage.chunks[0].layers.values()))
            handle = layer.register_forward_pre_hook(lambda *_: (time.sleep(sleep_s), handle.remove())[-1])
        dist.barrier()
        mesh.timer.take()
        replica.gradients(batch_of(1, model, workload, mesh))
        return {name: float(np.sum(spans)) for name, spans in mesh.timer.take().items()}


def loss_of_cut_vocabulary(logits: np.ndarray, labels: np.ndarray, scale: float, vocab_size: int | None = None) -> tuple[float, np.ndarray]:
    """The summed loss as this rank finds it from its part of the vocabulary, and the gradient of `scale` times it for that part.

    Logits from `vocab_size` on are padding.
    """
    from meshwright.train.parallel.tensor import _CutCrossEntropy, num_entries

    mesh = make_mesh(Layout(tp=dist.get_world_size()), torch.device("cpu"))
    part = torch.from_numpy(logits).chunk(mesh.tp.size, dim=-1)[mesh.tp.index].clone().requires_grad_()
    num_here = num_entries(vocab_size or logits.shape[-1], part.shape[-1], mesh.tp)
    loss = _CutCrossEntropy.apply(part, torch.from_numpy(labels), mesh.tp, num_here)
    (scale * loss).backward()
    mesh.close()
    return loss.item(), part.grad.numpy()


def lanes_of(layout: Layout, ends_meet: bool = True) -> tuple[list[list[list[int]]], dict[tuple[int, int], list[int]], dict[int, float]]:
    """Groups that this rank took part in making for its lanes, in order; the ranks of each lane; and what each neighbour sent in one."""
    made, make = [], _Maker.group

    def noted(self: _Maker, groups: list[list[int]], description: str) -> Any:
        made.append(groups)
        return make(self, groups, description)

    before = make_mesh(layout, torch.device("cpu"))  # so that the groups of the axes are not counted
    _Maker.group = noted
    try:
        mesh = make_mesh(layout, torch.device("cpu"), with_lanes=True, ends_meet=ends_meet)
    finally:
        _Maker.group = make
    ranks = {lane: dist.get_process_group_ranks(group) for lane, group in mesh.lanes.items()}
    received = {}
    for lane, group in mesh.lanes.items():
        other = mesh.pp.ranks[lane[0] if lane[1] == mesh.pp.index else lane[1]]
        message = torch.tensor([float(mesh.rank)])
        if lane[0] == mesh.pp.index:
            dist.isend(message, other, group=group).wait()
        else:
            dist.irecv(message, other, group=group).wait()
            received[other] = message.item()
    for one in (before, mesh):
        one.close()
    return made, ranks, received


def num_groups_of(layout: Layout, key_copies: int) -> int:
    """Groups that this rank is in, made as on a GPU; each holds a word that is sent round, so that it is there."""
    mesh = make_mesh(layout, torch.device("cpu"), key_copies=key_copies, with_lanes=True)
    for axis in axes_of(mesh):
        if axis.group is not None:
            assert axis.all_reduce(torch.ones(1)).item() == axis.size
    found = mesh.num_groups
    mesh.close()
    return found


def threads_after(layout: Layout, num_meshes: int) -> tuple[int, int]:
    """Threads of this rank after one mesh was made and given back, and after `num_meshes` more."""
    counts = []
    for count in (1, num_meshes):
        for _ in range(count):
            make_mesh(layout, torch.device("cpu")).close()
        counts.append(len(os.listdir("/proc/self/task")))
    return counts[0], counts[1]


def num_threads() -> int:
    """Threads of this process: every group that is not given back keeps some."""
    gc.collect()
    return len(os.listdir("/proc/self/task"))


def kept_in_forward(model: Model, workload: Workload, layout: Layout) -> Counter[tuple[int, ...]]:
    """Shapes of all tensors that one forward pass of this rank's chunk keeps for the backward pass, weights left out."""
    kept: Counter[tuple[int, ...]] = Counter()
    with replica_of(model, workload, layout) as (replica, mesh):
        (chunk,), micro_batch = replica.stage.chunks, batch_of(0, model, workload, mesh)[0]
        weights = {parameter.data_ptr() for parameter in chunk.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in weights:
                kept[tuple(tensor.shape)] += 1
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            chunk.hidden(micro_batch.tokens, micro_batch.context)
    return kept


def compiled_steps(model: Model, workload: Workload, layout: Layout, num_steps: int) -> tuple[Any, int]:
    """Steps with layers compiled as on a GPU, by a compiler that only traces them; and how many graphs it was given."""
    from functools import partial

    from parity import run_steps

    from meshwright.train import replica

    compiles, compile_layers = replica.compiles, replica.compile_layers
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    replica.compiles, replica.compile_layers = lambda *_: True, partial(compile_layers, backend="aot_eager")
    try:
        found = run_steps(model, workload, layout, num_steps)
        return found, torch._dynamo.utils.counters["stats"]["unique_graphs"]
    finally:
        replica.compiles, replica.compile_layers = compiles, compile_layers
        torch._dynamo.reset()
