"""Planes, links, neighbours and hashes: what is left, and that less never helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.simulator.fabric import Fabric, hashed_shares
from meshwright.simulator.noise import QUIET
from meshwright.simulator.run import Conditions, run_plan

slow_plan = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def step_s(plan, fabric, noise=QUIET, seed=0):
    return run_plan(plan, Conditions(noise=noise, fabric=fabric), 2, seed).steps.step_s


def test_one_lost_plane_of_eight_leaves_seven_eighths(racks):
    assert Fabric(planes_lost=1).common_share(racks.cluster) == 7 / 8
    degraded = Fabric(planes_lost=1).degraded(racks.cluster)
    assert degraded.tiers[-1].bytes_per_s == racks.cluster.tiers[-1].bytes_per_s * 7 / 8
    assert degraded.tiers[0] == racks.cluster.tiers[0]


def test_a_tenth_of_links_lost_costs_a_tenth_of_bandwidth_and_seven_hundredths_of_latency(racks):
    tier, whole = Fabric(links_lost=0.1).degraded(racks.cluster).tiers[-1], racks.cluster.tiers[-1]
    assert (tier.bytes_per_s / whole.bytes_per_s, tier.latency_s / whole.latency_s) == pytest.approx((0.9, 1.07))


def test_a_neighbour_gets_what_it_wants_up_to_half(racks):
    assert Fabric(neighbour=0.3).common_share(racks.cluster) == pytest.approx(0.7)
    assert Fabric(neighbour=0.9).common_share(racks.cluster) == 0.5


@slow_plan
@given(planes=st.integers(0, 6), seed=st.integers(0, 100), nics=st.sampled_from([0, 1, 16]))
def test_a_dead_plane_never_helps(racks, loud, planes, seed, nics):
    more, fewer = (step_s(racks, Fabric(planes_lost=lost, nics_hit=nics), loud, seed) for lost in (planes + 1, planes))
    assert (more >= fewer - 1e-12).all()


@slow_plan
@given(lost=st.floats(0, 0.5), more=st.floats(0, 0.4))
def test_lost_links_never_help(racks, lost, more):
    assert (step_s(racks, Fabric(links_lost=lost + more)) >= step_s(racks, Fabric(links_lost=lost)) - 1e-12).all()


def test_a_plane_of_one_nic_slows_that_nics_stage_alone(racks):
    shares = Fabric(planes_lost=1, nics_hit=1).stage_shares(racks.cluster, racks.layout, np.random.default_rng(0))
    assert sorted(shares) == [7 / 8, *[1.0] * 7]
    everywhere, one, none = (step_s(racks, fabric)[0] for fabric in (Fabric(planes_lost=1), Fabric(planes_lost=1, nics_hit=1), Fabric()))
    assert everywhere >= one - 1e-12 and one >= none - 1e-12


def test_hashed_flows_collide_and_more_ranks_collide_worse(racks, record):
    rng = np.random.default_rng(0)
    few, many = hashed_shares(racks.layout, rng), hashed_shares(record.layout, rng)
    assert (few <= 1).all() and (many > 0).all()
    assert many.mean() < few.mean() < 1
    assert step_s(racks, Fabric(routing="hashed"))[0] > step_s(racks, Fabric())[0]


@pytest.mark.parametrize(
    "fabric, what",
    [
        (lambda: Fabric(planes_lost=8), "8 planes, so 8 cannot be lost"),
        (lambda: Fabric(planes_lost=1, nics_hit=257), "nics_hit is 257, and"),
        (lambda: Fabric(links_lost=1.0), "links_lost is 1"),
        (lambda: Fabric(neighbour=-0.1), "neighbour is -0.1"),
        (lambda: Fabric(routing="magic"), "no routing named 'magic'"),
    ],
)
def test_what_a_fabric_cannot_lose_is_refused(racks, fabric, what):
    with pytest.raises(InputError, match=what):
        Conditions(fabric=fabric()).check(racks)


def test_collisions_slow_replicas_whose_traffic_is_not_walked_too(racks):
    flat = replace(racks, layout=replace(racks.layout, zero_stage=3))
    quiet = Conditions(noise=QUIET)
    plain, hashed, hit = (
        run_plan(flat, replace(quiet, fabric=fabric), 2, 0).mean_exposed_s["dp"]
        for fabric in (Fabric(), Fabric(routing="hashed"), Fabric(planes_lost=4, nics_hit=1))
    )
    assert hashed > plain and hit > plain


def test_a_hashed_fabric_that_sprays_instead_is_no_slower(racks):
    tiers = (*racks.cluster.tiers[:-1], replace(racks.cluster.tiers[-1], routing="hashed"))
    hashed = replace(racks, cluster=replace(racks.cluster, tiers=tiers))
    assert step_s(hashed, Fabric(routing="spray"))[0] < step_s(hashed, Fabric())[0]
    assert step_s(hashed, Fabric(routing="spray"))[0] == pytest.approx(step_s(racks, Fabric())[0], rel=1e-12)
