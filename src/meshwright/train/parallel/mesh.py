"""A layout's rank grid as process groups: one for each axis on which ranks exchange something.

The grid is that of the plan: the innermost axis of `layout.order` varies fastest with the rank. If a launcher fills racks in rank order, an
axis therefore stays on the tier that the plan put it on. Over NCCL a group is a communicator, which needs memory and time, so only groups
that are used are made: none for an axis of one rank, and for data parallelism only those of `replicate` and `shard`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.timing import Timer, timer_for

Lane = tuple[int, int]  # from which stage, to which


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The ranks that hold the same weights, in groups that each share one sharded state."""

    replicate: Axis  # over groups of ranks that each hold a whole sharded state
    shard: Axis  # over the ranks that share one sharded state
    column: tuple[tuple[int, ...], ...]  # the ranks, group by group

    @property
    def size(self) -> int:
        """Ranks that hold the same weights."""
        return self.replicate.size * self.shard.size

    def device_mesh(self, rank: int) -> DeviceMesh:
        """These ranks for torch's `fully_shard`: groups that share a state, then the ranks of one."""
        device_type = self.shard.device.type
        groups = [axis.group for axis in (self.replicate, self.shard) if axis.group is not None]
        if not groups:
            return DeviceMesh(device_type, [rank], mesh_dim_names=("shard",))
        assert self.shard.group is not None or self.shard.size == 1, "a state that no ranks share is not sharded"
        if len(groups) == 1:
            return DeviceMesh.from_group(groups[0], device_type, mesh_dim_names=("shard",))
        return DeviceMesh.from_group(groups, device_type, torch.tensor(self.column), mesh_dim_names=("replicate", "shard"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's position in a layout, and the groups that it belongs to."""

    layout: Layout
    device: torch.device
    rank: int
    tp: Axis
    cp: Axis
    pp: Axis
    dp: Axis
    ep: Axis  # over the ranks of a stage that share out the experts: ep x etp of them, those with parts of the same experts side by side
    replicas: Replicas  # of all weights but those of routed experts: data and context parallel ranks
    expert_replicas: Replicas  # of routed experts: all ranks of a stage that hold the same of them
    timer: Timer
    marks: Marks
    same_keys: Axis | None  # over the tensor-parallel ranks with the same key-value head; None: each has its own heads
    lanes: Mapping[Lane, dist.ProcessGroup]  # from stage to stage, a group for each direction; empty: the group of the axis is used
    made: Sequence[dist.ProcessGroup]  # all groups of this rank, except the one of all ranks
    making_s: float  # seconds that making them took

    @property
    def coordinate(self) -> dict[str, int]:
        """Position of this rank on every axis."""
        return self.layout.coordinate(self.rank)

    @property
    def replicate(self) -> Axis:
        """Over groups of ranks that each hold a whole sharded state."""
        return self.replicas.replicate

    @property
    def shard(self) -> Axis:
        """Over the ranks that share one sharded state."""
        return self.replicas.shard

    @property
    def num_replicas(self) -> int:
        """Ranks that hold the same weights: data and context parallel together."""
        return self.layout.dp * self.layout.cp

    @property
    def num_groups(self) -> int:
        """Number of groups that this rank is in, with that of all ranks: over NCCL each is a communicator."""
        return 1 + len(self.made)

    def lane(self, source: int, target: int) -> dist.ProcessGroup:
        """The group for messages from one stage to another; this rank is one of the two."""
        group = self.lanes.get((source, target), self.pp.group)
        assert group is not None, "stages that exchange messages have a group"
        return group

    def close(self) -> None:
        """Destroy the groups of this mesh. Every rank of the layout must call it."""
        dist.barrier()  # another rank may still be connecting
        for group in self.made:
            dist.destroy_process_group(group)


def make_mesh(
    layout: Layout,
    device: torch.device,
    marks: Marks | None = None,
    *,
    key_copies: int = 1,
    ends_meet: bool = True,
    with_lanes: bool | None = None,
    has_experts: bool = False,
) -> Mesh:
    """The groups of `layout` over all ranks of the default process group. Every rank must call it.

    `key_copies`: how many tensor-parallel ranks in a row hold the same key-value head (`Model.key_copies`).
    `ends_meet`: whether the last stage and the first exchange messages: with several chunks a stage, or a table that both hold.
    `with_lanes`: whether messages between stages get a group for each direction; by default where the device is a GPU.
    `has_experts`: whether there are routed experts, whose weights other ranks hold alike than the other weights.
    """
    world = dist.get_world_size()
    if layout.num_ranks != world:
        raise InputError(
            f"the layout {layout.degrees} takes {layout.num_ranks} ranks and {world} were started",
            where="layout",
            fix=f"start {layout.num_ranks}, or choose degrees whose product is {world}",
        )
    started_s = time.monotonic()
    makes_lanes = device.type == "cuda" if with_lanes is None else with_lanes
    maker = _Maker(layout, device, marks or Marks(), timer_for(device))
    axes = {name: maker.axis(name, maker.along(name)) for name in ("tp", "cp")}
    axes["pp"] = maker.axis("pp", maker.along("pp"), exchanges=not makes_lanes)
    axes["dp"] = maker.axis("dp", maker.along("dp"), exchanges=False)  # `replicas` do
    replicas = maker.replicas(replica_grid(layout))
    axes["ep"] = maker.axis("ep", expert_groups(layout), exchanges=has_experts)
    own_grid = has_experts and layout.tp * layout.expert_ranks > 1
    expert_replicas = maker.replicas(expert_replica_grid(layout), "of experts") if own_grid else replicas
    lanes = maker.lanes(ends_meet) if makes_lanes else {}
    same_keys = maker.axis("tp", same_key_groups(layout, key_copies), what="same keys") if key_copies > 1 else None
    return Mesh(
        layout=layout,
        device=device,
        rank=dist.get_rank(),
        timer=maker.timer,
        marks=maker.marks,
        lanes=lanes,
        same_keys=same_keys,
        replicas=replicas,
        expert_replicas=expert_replicas,
        made=maker.made,
        making_s=time.monotonic() - started_s,
        **axes,
    )


class _Maker:
    """Makes the groups of one layout, on every rank in the same order."""

    def __init__(self, layout: Layout, device: torch.device, marks: Marks, timer: Timer) -> None:
        self.layout, self.device, self.marks, self.timer = layout, device, marks, timer
        self.rank = dist.get_rank()
        self.made: list[dist.ProcessGroup] = []

    def along(self, axis: str) -> list[list[int]]:
        """Groups of ranks that differ on one axis only, in its order; they are disjoint and contain all ranks."""
        names = list(reversed(self.layout.order))
        groups: list[list[int]] = rank_grid(self.layout).movedim(names.index(axis), -1).reshape(-1, getattr(self.layout, axis)).tolist()
        return groups

    def axis(self, name: str, groups: Sequence[Sequence[int]], *, exchanges: bool = True, what: str = "") -> Axis:
        """This rank's axis, from disjoint groups that contain all ranks; with a process group if there is something to exchange."""
        own = sorted(next(group for group in groups if self.rank in group))  # as torch orders them
        group = self.group(groups, f"{name} {what}".strip()) if exchanges and len(own) > 1 else None
        return Axis(
            name=name, ranks=tuple(own), index=own.index(self.rank), group=group, timer=self.timer, marks=self.marks, device=self.device
        )

    def replicas(self, grid: torch.Tensor, of: str = "") -> Replicas:
        """This rank's replicas, from a grid of ranks by (weights that they hold, group that shares a state, position in the group)."""
        shards = "shards" if self.layout.zero_stage or of else ""
        return Replicas(
            replicate=self.axis("dp", grid.transpose(1, 2).reshape(-1, grid.shape[1]).tolist(), what=f"copies of a shard {of}".strip()),
            shard=self.axis("dp", grid.reshape(-1, grid.shape[2]).tolist(), what=f"{shards} {of}".strip()),
            column=next(tuple(map(tuple, column)) for column in grid.tolist() if any(self.rank in group for group in column)),
        )

    def group(self, groups: Sequence[Sequence[int]], description: str) -> dist.ProcessGroup | None:
        """This rank's group among disjoint groups; None if it is in none of them. Its description is what a failure's report calls it.

        If the default group is bound to GPUs, torch makes a group by splitting its NCCL communicator, and all ranks take part in a split.
        If a rank made only its own groups, its split would be matched with a different split of other ranks.
        """
        world = dist.group.WORLD
        if world is not None and world.bound_device_id is not None:
            number_ranks(world, world.bound_device_id)
            made = dist.split_group(split_ranks=[sorted(group) for group in groups], group_desc=description)
        else:
            all_made = [dist.new_group(list(group), group_desc=description) for group in groups]
            made = next((each for each, group in zip(all_made, groups, strict=True) if self.rank in group), None)
        if made is not None:
            self.made.append(made)
        return made

    def lanes(self, ends_meet: bool) -> dict[Lane, dist.ProcessGroup]:
        """Groups of two for the messages of this rank's stage, one for each direction.

        NCCL runs the messages of a group one after another: with one group for both directions, two stages that send to each other at
        once would each wait for the other to receive.
        """
        stage, found = self.layout.coordinate(self.rank)["pp"], {}
        for pairs in lane_rounds(self.layout.pp, ends_meet):
            mine = next((pair for pair in pairs if stage in pair), None)
            for lane, direction in ((mine, "next"), (mine and mine[::-1], "previous")):
                group = self.group(_world_groups(self.layout, pairs), f"pp to the {direction} stage")
                if lane is not None:
                    assert group is not None, "a stage of a pair is in its group"
                    found[lane] = group
        return found


def number_ranks(world: dist.ProcessGroup, device: torch.device) -> None:
    """Tell the backend of the group of all ranks which ranks these are: it looks them up when it is split.

    torch 2.11 to 2.13 know them by themselves only in the first group of a process (pytorch#192109). A process that goes on in another
    generation would read from an empty list, and die of SIGSEGV.
    """
    backend: Any = world._get_backend(device)
    backend.options.global_ranks_in_group = list(range(world.size()))


def lane_rounds(num_stages: int, ends_meet: bool = True) -> list[list[Lane]]:
    """Pairs of neighbours in a row of stages, or in a ring if the ends meet, in rounds in which no stage is in two pairs."""
    if num_stages < 3:
        return [[(0, 1)]] if num_stages == 2 else []
    row = [(stage, stage + 1) for stage in range(num_stages - 1)]
    last = [(num_stages - 1, 0)] if ends_meet else []
    if num_stages % 2:  # the pair of the two ends would share a stage with a pair in each round
        return [row[::2], row[1::2], *([last] if last else [])]
    return [row[::2], row[1::2] + last]


def _world_groups(layout: Layout, pairs: Sequence[Lane]) -> list[list[int]]:
    """Disjoint groups of ranks: each of the `pairs` of stages in every pipeline."""
    names = list(reversed(layout.order))
    pipelines = rank_grid(layout).movedim(names.index("pp"), -1).reshape(-1, layout.pp).tolist()
    return [[ranks[stage] for stage in pair] for ranks in pipelines for pair in pairs]


def same_key_groups(layout: Layout, key_copies: int) -> list[list[int]]:
    """Disjoint groups of all ranks: the ranks of one tensor-parallel group that hold the same key-value head."""
    names = list(reversed(layout.order))
    groups: list[list[int]] = rank_grid(layout).movedim(names.index("tp"), -1).reshape(-1, key_copies).tolist()
    return groups


def rank_grid(layout: Layout) -> torch.Tensor:
    """Ranks by position, the outermost axis of the layout first."""
    return torch.arange(layout.num_ranks).reshape([getattr(layout, axis) for axis in reversed(layout.order)])


def replica_grid(layout: Layout) -> torch.Tensor:
    """Ranks by (pipeline and tensor position, group of replicas, position in the group).

    Replicas are counted with context parallelism innermost. The first `zero_ranks` of them share one sharded state, the next `zero_ranks`
    another, and so on.
    """
    names = list(reversed(layout.order))
    ordered = rank_grid(layout).permute([names.index(axis) for axis in ("pp", "tp", "dp", "cp")])
    num_shards = layout.sharing_ranks if layout.zero_stage else layout.dp * layout.cp
    grid = ordered.reshape(layout.pp * layout.tp, layout.dp * layout.cp // num_shards, num_shards)
    return grid.sort(dim=2).values  # torch orders the ranks of a group by their numbers


def expert_groups(layout: Layout) -> list[list[int]]:
    """Disjoint groups of all ranks that share out the experts: ep x etp ranks of one stage, neighbours in the order of their numbers."""
    groups: list[list[int]] = _stage_grid(layout).reshape(-1, layout.expert_ranks).tolist()
    return groups


def expert_replica_grid(layout: Layout) -> torch.Tensor:
    """Ranks by (stage and position in a group of experts, group of ranks that share a state, position in it).

    All ranks of a stage at one position hold the same experts, or the same parts of them, whichever of dp, cp and tp they differ in. As
    many of them share a state as for the other weights, or as many as divide both, or all of them.
    """
    num_same = layout.dp * layout.cp * layout.tp // layout.expert_ranks
    shared = math.gcd(num_same, layout.zero_ranks) if layout.zero_stage and layout.zero_ranks else num_same
    num_shards = shared if shared > 1 or layout.zero_ranks == 1 else num_same
    columns = _stage_grid(layout).reshape(layout.pp, num_same, layout.expert_ranks).transpose(1, 2)
    return columns.reshape(layout.pp * layout.expert_ranks, num_same // num_shards, num_shards)


def _stage_grid(layout: Layout) -> torch.Tensor:
    """The ranks of each pipeline stage, in order."""
    names = list(reversed(layout.order))
    return rank_grid(layout).movedim(names.index("pp"), 0).reshape(layout.pp, -1).sort(dim=1).values
