"""The rank grid of a layout as process groups: one DeviceMesh, whose slices are the groups of each axis.

The grid is that of the plan: the innermost axis of `layout.order` varies fastest with the rank. So if a launcher fills racks in rank order,
each axis stays on the tier that the plan gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.timing import Timer, timer_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's position in a layout, and the groups that it belongs to."""

    layout: Layout
    device: torch.device
    rank: int
    grid: DeviceMesh
    replicas: DeviceMesh  # (column, replicate, shard): ranks of one column hold the same weights
    tp: Axis
    cp: Axis
    pp: Axis
    dp: Axis
    replicate: Axis  # over groups of ranks that each hold a whole sharded state
    shard: Axis  # over the ranks that share one sharded state
    timer: Timer
    marks: Marks
    same_keys: Axis | None  # over the tensor-parallel ranks that hold the same key-value head; None: each rank has its own heads
    lanes: Mapping[tuple[int, int], dist.ProcessGroup]  # between stages, one group per direction; empty: the group of the axis is used
    own_groups: Sequence[dist.ProcessGroup] = ()  # groups of `lanes`, including those of this rank alone, and of `same_keys`

    @property
    def coordinate(self) -> dict[str, int]:
        """Position of this rank on every axis."""
        return self.layout.coordinate(self.rank)

    @property
    def num_replicas(self) -> int:
        """Ranks that hold the same weights: data and context parallel together."""
        return self.layout.dp * self.layout.cp

    def close(self) -> None:
        """Release the groups of this mesh. Every rank of the layout must call it."""
        for mesh in (self.grid, self.replicas):
            for group in mesh.get_all_groups():
                if group is not None and group != dist.group.WORLD:
                    dist.destroy_process_group(group)
        for group in self.own_groups:
            dist.destroy_process_group(group)


def make_mesh(
    layout: Layout, device: torch.device, marks: Marks | None = None, *, key_copies: int = 1, with_lanes: bool | None = None
) -> Mesh:
    """The groups of `layout` over all ranks of the default process group. Every rank must call it.

    `key_copies`: how many neighbouring tensor-parallel ranks hold the same key-value head (`Model.key_copies`). `with_lanes`: whether
    messages between stages have a group for each direction; by default on GPUs.
    """
    world = dist.get_world_size()
    if layout.num_ranks != world:
        raise InputError(
            f"the layout {layout.degrees} takes {layout.num_ranks} ranks and {world} were started",
            where="layout",
            fix=f"start {layout.num_ranks}, or choose degrees whose product is {world}",
        )
    marks = marks or Marks()
    timer = timer_for(device)
    grid = DeviceMesh(device.type, rank_grid(layout), mesh_dim_names=tuple(reversed(layout.order)))
    replicas = DeviceMesh(device.type, replica_grid(layout), mesh_dim_names=("column", "replicate", "shard"))
    axes = {axis: Axis(name=axis, group=grid.get_group(axis), timer=timer, marks=marks, device=device) for axis in ("tp", "cp", "pp", "dp")}
    parts = {
        part: Axis(name="dp", group=replicas.get_group(part), timer=timer, marks=marks, device=device) for part in ("replicate", "shard")
    }
    lanes, own_groups = _lanes(layout, axes["pp"]) if (device.type == "cuda" if with_lanes is None else with_lanes) else ({}, [])
    same_keys = None
    if key_copies > 1:
        own_groups.append(_split(same_key_groups(layout, key_copies)))
        same_keys = Axis(name="tp", group=own_groups[-1], timer=timer, marks=marks, device=device)
    return Mesh(
        layout=layout,
        device=device,
        rank=dist.get_rank(),
        grid=grid,
        replicas=replicas,
        timer=timer,
        marks=marks,
        lanes=lanes,
        same_keys=same_keys,
        own_groups=own_groups,
        **axes,
        **parts,
    )


def _lanes(layout: Layout, pp: Axis) -> tuple[dict[tuple[int, int], dist.ProcessGroup], list[dist.ProcessGroup]]:
    """Groups of two ranks for the messages of this rank's stage, one for each direction, and all groups that were made for this.

    NCCL runs the messages of a group one after another. With one group for both directions, two stages that send to each other at the same
    time would both wait for the other to receive.
    """
    lanes: dict[tuple[int, int], dist.ProcessGroup] = {}
    made: list[dist.ProcessGroup] = []
    for pairs in lane_rounds(pp.size):
        mine = next((pair for pair in pairs if pp.index in pair), None)
        for lane in (mine, mine and mine[::-1]):
            made.append(_split(_world_groups(layout, pairs)))
            if lane is not None:
                lanes[lane] = made[-1]
    return lanes, made


def lane_rounds(num_stages: int) -> list[list[tuple[int, int]]]:
    """The neighbours in a ring of stages, in rounds in which no stage has two neighbours."""
    if num_stages < 3:
        return [[(0, 1)]] if num_stages == 2 else []
    ring = [(stage, (stage + 1) % num_stages) for stage in range(num_stages)]
    even = num_stages - num_stages % 2
    return [ring[:even:2], ring[1:even:2], *([ring[even:]] if even < num_stages else [])]


def _world_groups(layout: Layout, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Disjoint groups of all ranks: each of the `pairs` of stages in every pipeline, and every other rank alone."""
    names = list(reversed(layout.order))
    pipelines = rank_grid(layout).movedim(names.index("pp"), -1).reshape(-1, layout.pp).tolist()
    paired = {stage for pair in pairs for stage in pair}
    alone = [(stage,) for stage in range(layout.pp) if stage not in paired]
    return [[ranks[stage] for stage in group] for ranks in pipelines for group in (*pairs, *alone)]


def same_key_groups(layout: Layout, key_copies: int) -> list[list[int]]:
    """Disjoint groups of all ranks: those of one tensor-parallel group that hold the same key-value head."""
    names = list(reversed(layout.order))
    groups: list[list[int]] = rank_grid(layout).movedim(names.index("tp"), -1).reshape(-1, key_copies).tolist()
    return groups


def _split(groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """This rank's group among disjoint groups that contain all ranks.

    Every rank must make the same groups in the same order. If ranks are bound to GPUs, torch makes a group by splitting the NCCL
    communicator of all ranks, in which all ranks take part. A rank that made only its own groups would be matched with other splits, and
    would end in a communicator of one.
    """
    if getattr(dist.group.WORLD, "bound_device_id", None) is not None:
        own = dist.split_group(split_ranks=[list(group) for group in groups])
        assert own is not None  # every rank is in one of the groups
        return own
    made: dict[tuple[int, ...], dist.ProcessGroup] = {tuple(group): dist.new_group(list(group)) for group in groups}
    return next(made[group] for group in made if dist.get_rank() in group)


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
    return ordered.reshape(layout.pp * layout.tp, layout.dp * layout.cp // num_shards, num_shards)
