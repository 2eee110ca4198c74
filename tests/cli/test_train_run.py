"""The machine that a training run is priced on: as many accelerators as there are ranks, on one machine or on several."""

from __future__ import annotations

import pytest

from meshwright.cli.train_run import _sized
from meshwright.describe.load import load_cluster
from meshwright.errors import InputError


def sizes(cluster):
    return [tier.num_accelerators for tier in cluster.tiers]


def test_a_machine_of_the_right_size_is_left_as_it_is():
    machine = load_cluster("workstation-8x")
    assert _sized(machine, 8) == (machine, "")


def test_fewer_ranks_are_a_part_of_it():
    cluster, note = _sized(load_cluster("workstation-8x"), 2)
    assert (cluster.num_accelerators, note) == (2, "")


def test_ranks_on_several_machines_need_no_description_of_what_joins_them():
    machine = load_cluster("workstation-8x")
    cluster, note = _sized(machine, 16)
    assert sizes(cluster) == [*sizes(machine), 16]
    assert cluster.is_fabric(cluster.tiers[-1])
    assert note.startswith("2 x workstation-8x: the network between them is assumed to be as fast as ")


def test_a_network_that_is_described_grows():
    cluster, note = _sized(load_cluster("hgx-h200-ndr").resized(8), 16)
    assert (sizes(cluster), note) == ([8, 16], "")


@pytest.mark.parametrize("num_ranks", [9, 12])
def test_what_fills_no_whole_machines_is_refused_by_the_flag_that_was_given(num_ranks):
    with pytest.raises(InputError) as caught:
        _sized(load_cluster("workstation-8x"), num_ranks)
    assert caught.value.where == "--layout"
