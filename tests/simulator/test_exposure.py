"""How well the exposed time between replicas is known: an interval around the predicted time, as wide as the constants behind it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.profile import load_profile
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import job_of
from meshwright.predict.software import FITTED, on_profile, software
from meshwright.simulator import exposure
from meshwright.simulator.exposure import BEHIND, NORMAL_90, exposed_between_replicas

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_the_exposed_time_has_an_interval_around_it(record):
    mean = exposed_between_replicas(job_of(record), record.layout)
    assert 0 < mean.low_s < mean.seconds < mean.high_s
    assert mean.seconds == pytest.approx(record.parts_s["exposed_dp"], rel=1e-9)


def test_exposed_time_by_a_profile_is_as_sure_as_the_profile() -> None:
    stack = on_profile(software(), load_profile(FIXTURES / "profile_of_cores.json"))
    job = Job("llama-2m", "this-machine-2x4", "python-stdlib", stack)
    exposed = exposed_between_replicas(job, parse_layout("dp=8"))
    assert (exposed.low_s, exposed.seconds, exposed.high_s) == pytest.approx((0.8 * 16e-3, 16e-3, 1.2 * 16e-3))


def test_errors_of_the_constants_are_added_as_independent_ones(record, monkeypatch):
    # 10 s in the middle; the first constant moves it up by 3 or down by 1, the second down by 4 or up by nothing: up root(9), down root(17)
    job, moves = job_of(record), {"fabric_efficiency": (3.0, -1.0), "round_s": (0.0, -4.0)}
    base = job.software.constants

    def exposed_s(moved: Job, layout: object) -> float:
        for name, (up, down) in moves.items():
            change = getattr(moved.software.constants, name) - getattr(base, name)
            if change:
                return 10.0 + (up if change > 0 else down)
        return 10.0

    monkeypatch.setattr(exposure, "_exposed_s", exposed_s)
    found = exposed_between_replicas(job, record.layout)
    assert (found.seconds, found.high_s, found.low_s) == pytest.approx((10.0, 13.0, 10.0 - math.sqrt(17)))


def test_no_time_is_below_nothing(record, monkeypatch):
    base = job_of(record).software.constants
    monkeypatch.setattr(exposure, "_exposed_s", lambda job, layout: 1.0 if job.software.constants == base else 0.0)
    found = exposed_between_replicas(job_of(record), record.layout)
    assert (found.low_s, found.high_s) == (0.0, 1.0)


@pytest.mark.parametrize("name", BEHIND)
def test_a_constant_moves_by_so_many_spreads_within_its_bounds(name):
    stack, fitted = software(), FITTED[name]
    before = float(getattr(stack.constants, name))
    for deviates in (NORMAL_90, -NORMAL_90, 1e9, -1e9):
        moved = exposure._moved(stack, name, deviates)
        expected = min(max(before + deviates * fitted.spread, fitted.low), fitted.high)
        assert getattr(moved.constants, name) == pytest.approx(expected)
        assert replace(moved, constants=replace(moved.constants, **{name: before})) == stack  # and nothing else does


def test_one_replica_exposes_nothing():
    job = Job("llama-3.1-8b", "dgx-h100-superpod", "mlperf-llama31-8b", gpus=8)
    found = exposed_between_replicas(job, parse_layout("tp=8,dp=1,zero=0"))
    assert (found.low_s, found.seconds) == (0.0, 0.0)


def test_the_interval_covers_80_of_100():
    # the normal distribution has 10 % beyond so many deviations on either side
    assert 0.5 * math.erfc(NORMAL_90 / math.sqrt(2)) == pytest.approx(0.1, abs=1e-12)
