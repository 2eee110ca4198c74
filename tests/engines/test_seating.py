"""Allocated nodes in the plan's order, each group in one rack."""

from __future__ import annotations

import pytest

from meshwright.engines.hostlist import opened
from meshwright.engines.seating import check_count, hosts_text, racks_of_site, racks_of_slurm, ranks_text, seat
from meshwright.engines.shape import Shape
from meshwright.errors import InputError

TREE = """\
SwitchName=rack0 Level=0 LinkSpeed=1 Nodes=r0h[0-1]
SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=r1h[0-1]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=r0h[0-1],r1h[0-1] Switches=rack[0-1]
"""
BLOCK = "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nAggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n"


@pytest.fixture
def shape(plans):
    return Shape.of(plans["replicas"])  # four nodes, two and two together


def test_the_racks_of_slurm_are_its_lowest_switches_or_its_blocks():
    assert racks_of_slurm(TREE) == {"r0h0": "rack0", "r0h1": "rack0", "r1h0": "rack1", "r1h1": "rack1"}
    assert racks_of_slurm(BLOCK) == {"n1": "b1", "n2": "b1"}
    assert racks_of_slurm("No topology information available") == {}


def test_each_group_is_in_one_rack_whatever_the_order_of_the_allocation(shape):
    seating = seat(shape, ["r0h0", "r1h0", "r0h1", "r1h1"], racks_of_slurm(TREE))
    assert seating is not None and seating.hosts == ("r0h0", "r0h1", "r1h0", "r1h1")
    assert seating.racks == ("rack0", "rack0", "rack1", "rack1") and seating.spares == ()
    assert seating.words == "4 nodes in 2 racks (rack0, rack1): r0h[0-1],r1h[0-1]"


def test_a_rack_with_an_odd_node_gives_a_pair_and_a_spare(shape):
    racks = racks_of_site({"a": "n[0-2]", "b": "n[3-5]", "c": "n[6-7]"})
    seating = seat(shape, opened("n[0-7]"), racks)
    assert seating is not None and seating.hosts == ("n6", "n7", "n0", "n1")  # the rack without a remainder first
    assert seating.spares == ("n2", "n3", "n4", "n5")


def test_racks_that_split_a_group_are_refused(shape):
    racks = racks_of_site({"a": "n[0-2]", "b": "n3"})
    assert seat(shape, opened("n[0-3]"), racks) is None


def test_bad_nodes_are_left_out_and_spares_take_their_place(shape):
    racks = racks_of_site({"a": "n[0-2]", "b": "n[3-4]"})
    seating = seat(shape, opened("n[0-4]"), racks, ["n1"])
    assert seating is not None and set(seating.hosts) == {"n0", "n2", "n3", "n4"} and seating.left_out == ("n1",)
    assert seating.words.endswith("; left out as bad: n1")
    assert seat(shape, opened("n[0-3]"), racks, ["n1"]) is None


def test_without_racks_the_order_of_the_nodes_counts(shape):
    seating = seat(shape, ["d", "c", "b", "a"], {})
    assert seating is not None and seating.hosts == ("d", "c", "b", "a") and seating.words == "4 nodes: d,c,b,a"


def test_files_have_a_line_for_every_rank(shape):
    seating = seat(shape, ["d", "c", "b", "a"], {"d": "x", "c": "x", "b": "y", "a": "y"})
    assert seating is not None
    lines = hosts_text(shape, seating.hosts).splitlines()
    assert lines == ["d"] * 8 + ["c"] * 8 + ["b"] * 8 + ["a"] * 8
    head, *rows = ranks_text(shape, seating).splitlines()
    assert head == "rank,host,rack,slot,dp,pp,cp,tp"
    assert rows[0] == "0,d,x,0,0,0,0,0" and rows[9] == "9,c,x,1,0,1,0,1" and rows[31] == "31,a,y,7,1,1,0,7"


def test_too_few_hosts_are_an_error(shape):
    check_count(shape, ["a", "b", "c", "d"], "here")
    with pytest.raises(InputError, match="the plan needs 4 nodes, and 3 are named"):
        check_count(shape, ["a", "b", "c"], "here")
