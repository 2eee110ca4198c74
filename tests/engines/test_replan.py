"""Nodes that are not those that a plan wants: planned again, with what that costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import EMULATED, load_cluster
from meshwright.engines.hostlist import opened
from meshwright.engines.replan import cut_cluster, cuts, placed
from meshwright.engines.seating import racks_of_site
from meshwright.engines.shape import Shape
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.plan import plan_of


@pytest.fixture(scope="module")
def plan():
    """Two racks of two nodes with two ranks each, on cores."""
    cluster = replace(load_cluster(EMULATED), name="two racks", accelerators_per_node=2)
    return plan_of(Job("llama-2m", cluster, "python-stdlib", profile="none").forecast("tp=2,pp=2,dp=2,mbs=4"), "small")


def test_what_was_wanted_is_taken_as_it_is(plan):
    found = placed(plan, opened("n[0-3]"), racks_of_site({"a": "n[0-1]", "b": "n[2-3]"}))
    assert found.plan is plan and found.change == "" and found.seating.hosts == ("n0", "n1", "n2", "n3")


def test_racks_of_another_shape_are_planned_again_and_the_cost_is_told(plan):
    found = placed(plan, opened("n[0-3]"), racks_of_site({"a": "n[0-2]", "b": "n3"}))
    assert found.plan.layout.num_ranks == 8 and sorted(found.seating.hosts) == ["n0", "n1", "n2", "n3"]
    assert found.change.startswith(
        "planned again, because 4 nodes were allocated in racks of 3, 1, and the plan wants 8 ranks on 4 nodes: 2 x 2 that share a rack"
    )
    assert "a step instead of" in found.change and found.change.endswith(" %")
    assert found.plan.workload == plan.workload and found.plan.model == plan.model


def test_fewer_nodes_are_planned_again(plan):
    found = placed(plan, opened("n[0-3]"), racks_of_site({"a": "n[0-1]", "b": "n[2-3]"}), bad=["n3"])
    assert found.plan.layout.num_ranks == 6 and set(found.seating.hosts) == {"n0", "n1", "n2"}
    assert "racks of 2, 1, 1 bad node left out" in found.change
    assert found.plan.workload.global_batch == plan.workload.global_batch


def test_a_cluster_without_racks_keeps_its_plan_and_says_that_the_cost_is_not_known(plans):
    plan = plans["replicas"]  # replicas of two nodes
    found = placed(plan, opened("n[0-3]"), racks_of_site({"a": "n[0-2]", "b": "n3"}))
    assert found.plan is plan and found.seating.hosts == ("n0", "n1", "n2", "n3") and found.seating.racks == ("a", "a", "a", "b")
    assert "some replicas are in two racks" in found.change and "is not known" in found.change


def test_no_node_at_all_is_an_error(plan):
    with pytest.raises(InputError, match="0 good nodes were allocated"):
        placed(plan, ["n0"], {}, bad=["n0"])


def test_racks_are_cut_into_equal_groups(plan, plans):
    shape = Shape.of(plan)
    assert cuts([3, 1], shape) == [(1, 4), (2, 2)]
    assert cuts([2, 1], shape) == [(1, 3), (2, 2)]
    assert cuts([], shape) == []
    assert cuts([17, 15], Shape.of(plans["racks"]))[:2] == [(1, 32), (15, 30)]  # 32 nodes are wanted, 16 in a rack


def test_a_cluster_is_cut_to_racks_of_so_many_nodes(plan):
    shape = Shape.of(plan)
    smaller = cut_cluster(plan.cluster, shape, 1, 3)
    assert smaller.num_accelerators == 6 and smaller.num_nodes == 3
    same = cut_cluster(plan.cluster, shape, 2, 4)
    assert [tier.num_accelerators for tier in same.tiers] == [4, 8] and same.num_nodes == 4
