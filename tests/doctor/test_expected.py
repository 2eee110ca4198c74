"""What plans and clusters describe of a node."""

from __future__ import annotations

import math

import pytest

from meshwright.describe.load import load_cluster
from meshwright.doctor.expected import expected_of, least_versions, version_of
from meshwright.plan.plan import read_plan
from meshwright.units import GB, MIB, TERA


def test_a_cluster_of_gpus():
    found = expected_of(load_cluster("hgx-h200-ndr"), "a test")
    assert (found.needs_gpus, found.accelerator, found.gpus_per_node) == (True, "h200", 8)
    assert (found.flops_per_s, found.bytes_per_s, found.power_cap_w) == (989 * TERA, 4800 * GB, 700.0)
    assert found.gpu_memory_bytes == 143771 * MIB and found.tiers[0].name == "node"


def test_a_plan_of_fewer_ranks_needs_fewer_gpus(racks_plan):
    plan = read_plan(racks_plan)
    assert expected_of(plan.cluster, "a test", plan).gpus_per_node == plan.cluster.used_per_node
    assert expected_of(plan.cluster, "a test", plan).host_bytes is None


def test_this_machine_and_the_racks_that_it_stands_for_are_as_fast():
    whole, racks = (expected_of(load_cluster(name), "a test") for name in ("this-machine", "this-machine-2x4"))
    if whole.needs_gpus:
        pytest.skip("this machine has GPUs")
    assert whole.flops_per_s == pytest.approx(racks.flops_per_s) and whole.bytes_per_s == pytest.approx(racks.bytes_per_s)
    assert not racks.needs_gpus and racks.tiers == ()
    assert whole.flops_per_s is not None and math.isfinite(whole.flops_per_s)


def test_the_oldest_torch_is_that_of_our_own_metadata():
    assert least_versions()["torch"] >= (2, 10)


@pytest.mark.parametrize("text, numbers", [("2.13.0+cpu", (2, 13, 0)), ("2.11", (2, 11)), ("580.65.06", (580, 65, 6)), ("none", ())])
def test_versions_are_compared_by_their_numbers(text, numbers):
    assert version_of(text) == numbers
