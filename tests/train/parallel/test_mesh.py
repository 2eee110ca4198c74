"""The mesh realises the placement: the process groups' own ranks, on two racks of four, lie where the plan put each axis."""

from __future__ import annotations

import subprocess
import sys

import pytest
from on_ranks import groups_of, lanes_of, num_groups_of, threads_after
from ranks import Pools

from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import accelerator
from meshwright.layout import AXES, Layout, parse_layout
from meshwright.predict.placement import tiers_of
from meshwright.train.parallel.mesh import _world_groups, lane_rounds, rank_grid, replica_grid, same_key_groups

RACK, NUM_RACKS = 4, 2


def racks() -> Cluster:
    """Two racks of four."""
    tiers = [
        Tier(name=name, link="by hand", num_accelerators=size, num_installed=size, bytes_per_s=1e9, latency_s=1e-6)
        for name, size in (("rack", RACK), ("fabric", RACK * NUM_RACKS))
    ]
    return Cluster(name="two racks", accelerator=accelerator("h100"), tiers=tuple(tiers), accelerators_per_node=RACK)


def racks_of(ranks: list[int]) -> list[int]:
    """The rack of each rank, where a launcher fills racks in rank order."""
    return [rank // RACK for rank in ranks]


INSIDE = {"tp": ("rack",), "cp": ("rack",), "pp": ("rack",), "dp": ("fabric",)}


@pytest.mark.parametrize(
    "text",
    [
        "tp=2,pp=2,dp=2",
        "tp=4,dp=2",
        "cp=4,dp=2",
        "pp=4,dp=2",
        "tp=2,cp=2,dp=2",
        "cp=2,pp=2,dp=2",
        "tp=2,pp=2,dp=2,order=pp-tp-cp-dp",
        "cp=2,pp=2,dp=2,order=pp-cp-tp-dp",
    ],
)
def test_tp_cp_and_pp_stay_in_a_rack_and_dp_has_one_member_in_each(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    assert tiers_of(layout, racks()) == {axis: tiers for axis, tiers in INSIDE.items() if getattr(layout, axis) > 1}
    for groups in pools.of(8).run(groups_of, layout):
        assert all(len(groups[axis]) == getattr(layout, axis) for axis in AXES)
        assert all(len(set(racks_of(groups[axis]))) == 1 for axis in ("tp", "cp", "pp"))
        assert sorted(racks_of(groups["dp"])) == list(range(NUM_RACKS))


@pytest.mark.parametrize(
    "text", ["tp=2,pp=2,dp=2,order=dp-tp-cp-pp", "tp=2,pp=4,order=tp-cp-pp-dp", "tp=8", "dp=8", "cp=2,dp=4,order=dp-cp-tp-pp"]
)
def test_groups_cross_racks_where_the_placement_says_so(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    crossed = tiers_of(layout, racks())
    for rank, groups in enumerate(pools.of(8).run(groups_of, layout)):
        for axis in AXES:
            assert rank in groups[axis]
            assert (len(set(racks_of(groups[axis]))) > 1) == ("fabric" in crossed.get(axis, ()))


@pytest.mark.parametrize("text", ["tp=2,cp=2,dp=2", "cp=2,dp=4,zero_ranks=4", "cp=4,dp=2,zero=3,zero_ranks=2", "dp=8,zero=2,zero_ranks=4"])
def test_ranks_that_share_a_state_hold_the_same_weights_and_are_neighbours(text: str, pools: Pools) -> None:
    layout = parse_layout(text)
    for rank, groups in enumerate(pools.of(8).run(groups_of, layout)):
        places = [layout.coordinate(other) for other in [*groups["shard"], *groups["replicate"]]]
        mine = layout.coordinate(rank)
        assert all((place["tp"], place["pp"]) == (mine["tp"], mine["pp"]) for place in places)
        assert len(groups["shard"]) == layout.sharing_ranks
        assert len(groups["shard"]) * len(groups["replicate"]) == layout.dp * layout.cp


@pytest.mark.parametrize("text", ["tp=2,cp=2,pp=2,dp=2", "tp=4,dp=3,order=dp-pp-cp-tp", "cp=2,pp=3,order=pp-tp-dp-cp"])
def test_the_grid_is_the_layouts(text: str) -> None:
    layout = parse_layout(text)
    grid, names = rank_grid(layout), list(reversed(layout.order))
    for rank in range(layout.num_ranks):
        place = layout.coordinate(rank)
        assert int(grid[tuple(place[axis] for axis in names)]) == rank
    assert sorted(replica_grid(layout).flatten().tolist()) == list(range(layout.num_ranks))


@pytest.mark.parametrize(
    "text", ["cp=4,dp=3,zero_ranks=6", "cp=4,dp=2,zero_ranks=2,order=dp-cp-tp-pp", "cp=2,dp=4,zero_ranks=4,order=dp-tp-cp-pp"]
)
def test_ranks_of_a_shared_state_are_in_torchs_order(text: str) -> None:
    for column in replica_grid(parse_layout(text)).tolist():
        assert all(row == sorted(row) for row in column)


def test_a_layout_of_other_size_than_the_world_is_refused(pools: Pools) -> None:
    with pytest.raises(AssertionError, match="takes 4 ranks and 2 were started"):
        pools.of(2).run(groups_of, Layout(dp=4))


def test_a_mesh_that_is_given_back_leaves_no_threads(pools: Pools) -> None:
    for before, after in pools.of(4).run(threads_after, parse_layout("tp=2,dp=2"), 5):
        assert after <= before


@pytest.mark.parametrize("ends_meet", [True, False])
@pytest.mark.parametrize("text", ["pp=2", "pp=3", "pp=4", "pp=2,dp=2", "pp=4,tp=2"])
def test_every_rank_takes_part_in_making_every_lane(text: str, ends_meet: bool, pools: Pools) -> None:
    """Splitting the world's NCCL communicator is a collective: ranks that make different groups get communicators of one rank."""
    layout = parse_layout(text)
    found = pools.of(layout.num_ranks).run(lanes_of, layout, ends_meet)
    assert len({str(made) for made, _, _ in found}) == 1 and found[0][0]
    for rank, (_, lanes, received) in enumerate(found):
        stage, count = layout.coordinate(rank)["pp"], layout.pp
        is_ring = ends_meet or count == 2
        neighbours = {(stage + turn) % count for turn in (1, -1) if is_ring or 0 <= stage + turn < count}
        assert lanes.keys() == {lane for other in neighbours for lane in ((stage, other), (other, stage))}
        assert all(len(ranks) == 2 and rank in ranks for ranks in lanes.values())
        assert {layout.coordinate(other)["pp"] for other in received} == neighbours
        assert all(value == other for other, value in received.items())


@pytest.mark.parametrize("ends_meet", [True, False])
@pytest.mark.parametrize("num_stages", range(1, 10))
def test_rounds_of_lanes_are_disjoint_pairs_and_join_all_neighbours(num_stages: int, ends_meet: bool) -> None:
    layout = Layout(pp=num_stages, dp=2)
    rounds = lane_rounds(num_stages, ends_meet)
    for pairs in rounds:
        ranks = [rank for group in _world_groups(layout, pairs) for rank in group]
        assert len(ranks) == len(set(ranks)) and all(len(group) == 2 for group in _world_groups(layout, pairs))
    joined = {frozenset(pair) for pairs in rounds for pair in pairs}
    last = num_stages if ends_meet else num_stages - 1
    assert joined == {frozenset((stage, (stage + 1) % num_stages)) for stage in range(last) if num_stages > 1}


@pytest.mark.parametrize(
    ("text", "key_copies", "num_groups"),
    [
        ("dp=1", 1, 1),  # the world's alone
        ("dp=2", 1, 2),
        ("tp=2", 2, 3),  # a group of the tensor ranks, and one of those that hold the same head
        ("tp=2,cp=2,dp=2,zero=1", 1, 4),
        ("cp=2,dp=4,zero=1,zero_ranks=4", 1, 4),  # with ranks that share a state, and those that sum over such groups
        ("pp=4,dp=2", 1, 6),  # two neighbours, two directions each
    ],
)
def test_a_rank_is_in_no_more_groups_than_it_exchanges_something_with(text: str, key_copies: int, num_groups: int, pools: Pools) -> None:
    layout = parse_layout(text)
    assert set(pools.of(layout.num_ranks).run(num_groups_of, layout, key_copies)) == {num_groups}


@pytest.mark.parametrize("text", ["tp=4,dp=2", "tp=4,pp=2,order=dp-pp-cp-tp", "tp=4,cp=2,pp=2,order=pp-tp-dp-cp"])
def test_copies_of_a_head_are_neighbours_on_the_tensor_axis(text: str) -> None:
    layout = parse_layout(text)
    groups = same_key_groups(layout, 2)
    assert sorted(rank for group in groups for rank in group) == list(range(layout.num_ranks))
    for group in groups:
        places = [layout.coordinate(rank) for rank in group]
        assert {place["tp"] // 2 for place in places} == {places[0]["tp"] // 2}
        assert len({(place["cp"], place["pp"], place["dp"]) for place in places}) == 1


SPLIT_IN_TWO_GENERATIONS = """
from datetime import timedelta
import torch
import torch.distributed as dist
from meshwright.train.parallel.mesh import number_ranks
for generation in range(2):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    number_ranks(dist.group.WORLD, torch.device("cpu"))
    options = dist.ProcessGroupGloo._Options()
    options._timeout, options._devices = timedelta(seconds=20), [dist.ProcessGroupGloo.create_default_device()]
    made = dist.group.WORLD.split_group([0], opts=options, group_name="one", group_desc="one")
    print(made.size())
    dist.destroy_process_group()
"""


def test_a_process_that_goes_on_in_another_generation_can_split_its_group_again() -> None:
    """torch's gloo backend has the same error as its NCCL backend: without `number_ranks` the second split ends with SIGSEGV."""
    found = subprocess.run([sys.executable, "-c", SPLIT_IN_TWO_GENERATIONS], capture_output=True, text=True, check=False, timeout=120)
    assert (found.returncode, found.stdout.split()) == (0, ["1", "1"]), found.stderr
