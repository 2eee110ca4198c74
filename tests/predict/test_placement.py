"""Which tier an axis crosses: real machines, and parity with counting ranks one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.collectives import gather_s
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import Found, accelerator, cluster_from, load_cluster
from meshwright.layout import AXES, ORDERS, Layout, Layouts, parse_layout
from meshwright.predict.placement import place, ranks_of, spanned, tier_sizes, tiers_of


def tier(name, size, installed=0, bytes_per_s=1e9):
    return Tier(name=name, link="by-hand", num_accelerators=size, num_installed=installed or size, bytes_per_s=bytes_per_s, latency_s=1e-6)


def cluster(*tiers):
    return Cluster(name="by hand", accelerator=accelerator("h100"), tiers=tiers, accelerators_per_node=8)


def members(layout, machine):
    """Members of every axis in a domain of each tier."""
    placed = place(Layouts.of([layout]), tier_sizes(machine))
    return {axis: placed.members[axis][:, 0].tolist() for axis in AXES}


def test_the_record_machine_keeps_everything_but_data_parallelism_in_a_rack():
    machine = load_cluster("azure-gb200-128")
    layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
    assert tiers_of(layout, machine) == {"tp": ("rack",), "cp": ("rack",), "pp": ("rack",), "dp": ("fabric",)}
    assert members(layout, machine) == {"tp": [4, 4], "cp": [2, 2], "pp": [8, 8], "dp": [1, 128]}


def test_with_the_pipeline_outermost_its_messages_leave_the_rack():
    layout = parse_layout("tp=4,cp=2,pp=8,dp=128,order=tp-cp-dp-pp")
    assert tiers_of(layout, load_cluster("azure-gb200-128")) == {
        "tp": ("rack",),
        "cp": ("rack",),
        "pp": ("fabric",),
        "dp": ("rack", "fabric"),
    }


def test_64_of_72_count_as_64():
    assert load_cluster("azure-gb200-128").tiers[0].num_installed == 72
    assert members(Layout(tp=8, dp=1024), load_cluster("azure-gb200-128"))["dp"] == [8, 1024]


def test_an_axis_that_crosses_two_tiers():
    layout = Layout(tp=2, dp=16)
    assert members(layout, cluster(tier("node", 8), tier("fabric", 32)))["dp"] == [4, 16]
    assert tiers_of(layout, cluster(tier("node", 8), tier("fabric", 32)))["dp"] == ("node", "fabric")


def test_three_tiers():
    machine = cluster(tier("tray", 4), tier("rack", 64, 72), tier("fabric", 256))
    layout = Layout(tp=4, cp=2, pp=8, dp=4)
    assert tiers_of(layout, machine) == {"tp": ("tray",), "cp": ("rack",), "pp": ("rack",), "dp": ("fabric",)}
    assert members(layout, machine) == {"tp": [4, 4, 4], "cp": [1, 2, 2], "pp": [1, 8, 8], "dp": [1, 1, 4]}
    assert members(Layout(dp=256), machine)["dp"] == [4, 64, 256]


def test_a_tier_between_that_an_axis_skips_is_not_crossed():
    machine = cluster(tier("tray", 4), tier("rack", 64), tier("fabric", 256))
    assert tiers_of(Layout(tp=64, dp=4), machine) == {"tp": ("tray", "rack"), "dp": ("fabric",)}


def test_an_axis_of_one_crosses_nothing():
    assert tiers_of(Layout(), cluster(tier("node", 1))) == {}


def test_several_accelerators_behind_one_port_share_it():
    """A tier states bytes/s of one accelerator: four behind a 400 Gb/s port get 12.5 GB/s each, and all of it together."""
    table = {
        "accelerator": "h100",
        "accelerators_per_node": 4,
        "tiers": [
            {"name": "node", "link": "nvlink-4", "num_accelerators": 4},
            {"name": "fabric", "link": "ndr", "num_accelerators": 16, "Gbit_per_s": 100},
        ],
    }
    machine = cluster_from(Found(table, "shared-port", "by hand"))
    assert machine.tiers[1].bytes_per_s == 12.5e9
    rates = np.array([[t.bytes_per_s] for t in machine])
    spread = place(Layouts.of([Layout(dp=16)]), tier_sizes(machine)).members["dp"]
    alone = place(Layouts.of([Layout(tp=4, dp=4)]), tier_sizes(machine)).members["dp"]
    assert gather_s(1e9, spread, rates) == pytest.approx(1e9 * 15 / 16 / 50e9)  # four ports' shares carry a quarter each
    assert gather_s(1e9, alone, rates) == pytest.approx(1e9 * 3 / 4 / 12.5e9)  # the other three have groups of their own to serve


powers = st.sampled_from([1, 2, 4, 8])


@st.composite
def placed_layouts(draw):
    layout = Layout(tp=draw(powers), cp=draw(powers), pp=draw(powers), dp=draw(powers), order=draw(st.sampled_from(ORDERS)))
    sizes = sorted(draw(st.lists(st.sampled_from([1, 2, 4, 8, 16, 64, 256]), min_size=1, max_size=3)))
    sizes = [min(size, layout.num_ranks) for size in sizes]
    return layout, cluster(*(tier(f"tier{i}", size) for i, size in enumerate([*sizes, layout.num_ranks])))


@given(placed_layouts())
def test_members_are_those_that_counting_ranks_finds(placed):
    layout, machine = placed
    found = members(layout, machine)
    for axis in AXES:
        ranks = [layout.rank({**dict.fromkeys(AXES, 0), axis: i}) for i in range(getattr(layout, axis))]
        assert found[axis] == [sum(rank < t.num_accelerators for rank in ranks) for t in machine]


@given(placed_layouts())
def test_members_multiply_to_the_ranks_of_a_domain(placed):
    layout, machine = placed
    found = members(layout, machine)
    for i, t in enumerate(machine):
        assert math.prod(found[axis][i] for axis in AXES) == t.num_accelerators


@given(placed_layouts())
def test_groups_of_two_axes_multiply(placed):
    layout, machine = placed
    placement = place(Layouts.of([layout]), tier_sizes(machine))
    np.testing.assert_array_equal(placement.joint("cp", "dp"), placement.members["cp"] * placement.members["dp"])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 5, 7, 8, 72]))
def test_whatever_the_degrees_members_grow_outwards_to_the_whole_group(tp, pp, dp, size):
    layout = Layout(tp=tp, pp=pp, dp=dp)
    sizes = np.array([[1.0], [float(size)], [float(layout.num_ranks)]])
    placement = place(Layouts.of([layout]), sizes)
    for axis in AXES:
        column = placement.members[axis][:, 0]
        assert column[-1] == getattr(layout, axis)
        assert (np.diff(column) >= 0).all() and column[0] == 1


def test_many_layouts_are_placed_as_one_by_one():
    machine = load_cluster("dgx-h100-superpod")
    rows = [Layout(tp=8, dp=128), Layout(tp=2, pp=8, dp=64), Layout(dp=1024, order=("dp", "tp", "cp", "pp"))]
    together = place(Layouts.of(rows), tier_sizes(machine))
    for i, row in enumerate(rows):
        alone = place(Layouts.of([row]), tier_sizes(machine))
        for axis in AXES:
            np.testing.assert_array_equal(together.members[axis][:, i], alone.members[axis][:, 0])


def test_gradients_go_over_context_ranks_and_replicas():
    layout, machine = Layout(tp=4, cp=4, dp=1), load_cluster("dgx-h100-superpod").resized(16)
    over = ranks_of("dp", layout)
    assert over == {"dp": 1, "cp": 4} and ranks_of("cp", layout) == {"cp": 4} and ranks_of("dp", Layout(dp=8)) == {"dp": 8}
    assert "dp" not in tiers_of(layout, machine)
    assert spanned(over, machine, tiers_of(layout, machine)) == ("node", "fabric")
    assert spanned({"dp": 1}, machine, tiers_of(layout, machine)) == ()


@pytest.mark.parametrize(
    ("layout", "crossed"),
    [
        (Layout(tp=1, cp=4, dp=128, ep=64), ("rack",)),  # a group of 64 neighbours is a rack
        (Layout(tp=1, cp=4, dp=128, ep=128), ("rack", "fabric")),
        (Layout(tp=4, cp=1, pp=16, dp=8, ep=8, order=("tp", "cp", "pp", "dp")), ("rack", "fabric")),  # a rack holds 4 ranks of each stage
        (Layout(tp=4, cp=1, pp=16, dp=8, ep=8, order=("tp", "cp", "dp", "pp")), ("rack",)),
    ],
)
def test_experts_cross_the_tiers_of_the_ranks_they_lie_over(layout, crossed):
    cluster = load_cluster("gb200-nvl72-spectrum-x").resized(512)
    assert cluster.tiers[0].num_accelerators == 64
    assert tiers_of(layout, cluster)["ep"] == crossed
    assert "ep" not in tiers_of(replace(layout, ep=1), cluster)
    # The same, by walking the ranks: the first group of a stage is its innermost ranks.
    stage = [rank for rank in range(512) if layout.coordinate(rank)["pp"] == 0][: layout.ep]
    assert (len({rank // 64 for rank in stage}) > 1) == ("fabric" in crossed)
