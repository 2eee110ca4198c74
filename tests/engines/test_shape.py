"""Which nodes a plan needs, and which of them belong together."""

from __future__ import annotations

from dataclasses import replace

from meshwright.engines.shape import Shape


def test_the_nodes_of_a_rack_belong_together(plans):
    shape = Shape.of(plans["racks"])
    assert (shape.num_nodes, shape.group, shape.group_nodes, shape.num_groups) == (32, "rack", 16, 2)
    assert (shape.ranks_per_node, shape.is_even, shape.needs_gpus) == (4, True, True)
    assert (shape.spares_per_group, shape.num_spares) == (2, 4)  # 72 of a rack, 64 in use: two trays of four
    assert shape.words == "128 ranks on 32 nodes: 2 x 16 that share a rack (one rack, and 2 idle)"


def test_without_racks_the_nodes_of_a_replica_belong_together(plans):
    shape = Shape.of(plans["replicas"])
    assert (shape.num_nodes, shape.group, shape.group_nodes, shape.num_spares) == (4, "replica", 2, 0)
    assert shape.rank_nodes == [rank // 8 for rank in range(32)]


def test_a_replica_in_a_node_asks_for_no_rack(plans):
    shape = Shape.of(plans["cores"])
    assert (shape.num_nodes, shape.group, shape.group_nodes, shape.needs_gpus) == (2, "", 1, False)
    assert shape.words == "8 ranks on 2 nodes"


def test_replicas_whose_ranks_are_not_neighbours_ask_for_no_rack(plans):
    plan = plans["replicas"]
    scattered = replace(plan, layout=replace(plan.layout, order=("tp", "cp", "dp", "pp")))
    assert Shape.of(scattered).group == ""
