"""Mappings of one job to a lab: which there are, what crosses the racks, and what is predicted for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.lab.cluster import lab_cluster
from meshwright.lab.description import Lab
from meshwright.lab.mapping import crossing_shares, mappings, num_steps_for, shuffled_parts_s
from meshwright.lab.ranks import in_order
from meshwright.layout import Layout

LAYOUT = Layout(tp=2, pp=2, dp=2, micro_batch=4)


@pytest.fixture(scope="module")
def job() -> Job:
    """A small job on the usual lab, priced without a profile."""
    return Job(load_model("llama-2m"), lab_cluster(Lab()), load_workload("python-stdlib"), profile="none")


def test_ranks_in_order_cross_the_racks_on_the_outermost_axis_alone():
    for order in (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"), ("dp", "pp", "cp", "tp")):
        shares = crossing_shares(replace(LAYOUT, order=order), in_order(8), Lab())
        assert shares == {axis: float(axis == order[-1]) for axis in ("tp", "pp", "dp")}


def test_ranks_in_other_places_cross_with_some_of_their_groups():
    swapped = (0, 4, 2, 3, 1, 5, 6, 7)  # ranks 1 and 4 have changed places, so that ranks 0 and 1 are in different racks
    assert crossing_shares(LAYOUT, swapped, Lab()) == {"tp": 0.5, "pp": 0.5, "dp": 0.5}


def test_every_axis_is_put_across_once_and_the_planners_choice_comes_first(job):
    found = mappings(job, LAYOUT, Lab(), seed=1)
    assert [one.name for one in found] == ["first", "tp-across", "pp-across", "dp-across", "shuffled"]
    assert [one.layout.order[-1] for one in found[1:4]] == ["tp", "pp", "dp"]
    assert found[0].predicted_s == min(one.predicted_s for one in found)
    for one in found[1:4]:
        assert one.crossing[one.name[:2]] == 1.0 and one.predicted_s == one.forecast.step_s
        assert (one.layout.tp, one.layout.pp, one.layout.dp) == (2, 2, 2)
    assert all(sum(one.parts_s.values()) == pytest.approx(one.predicted_s) for one in found)
    assert sorted(found[4].slots) == list(range(8)) and found[4].slots != tuple(range(8))


def test_shuffled_ranks_add_their_share_of_the_waits(job):
    across = job.forecast(replace(LAYOUT, order=("dp", "cp", "pp", "tp"))).step_s
    none_s, half_s, all_s = (sum(shuffled_parts_s(job, LAYOUT, {"tp": share}).values()) for share in (0.0, 0.5, 1.0))
    assert none_s < half_s < all_s
    assert half_s - none_s == pytest.approx(all_s - half_s)
    assert all_s == pytest.approx(across, rel=0.15)


def test_what_cannot_be_mapped_is_refused(job):
    with pytest.raises(InputError, match="the layout has 4 ranks, and lab 'lab' has places for 8"):
        mappings(job, Layout(tp=2, dp=2), Lab(), seed=0)
    with pytest.raises(InputError, match="has one rack, so nothing crosses racks"):
        mappings(job, LAYOUT, Lab(num_racks=1, num_hosts=4), seed=0)


def test_long_steps_are_run_less_often():
    assert [num_steps_for(step_s, 30.0) for step_s in (0.1, 3.0, 100.0)] == [21, 11, 6]
