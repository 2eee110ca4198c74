"""Weeks of a plan: effective time, cost, chances, sizes, and the error of standing in for steps with their mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.describe.failures import failures
from meshwright.simulator.noise import QUIET
from meshwright.simulator.outlook import campaign_of, finish, mean_step, outlook, sizes
from meshwright.simulator.planned_step import planned_step
from meshwright.simulator.run import Conditions, run_plan
from meshwright.simulator.step import Slow
from meshwright.units import DAY


def test_the_mean_of_a_sample_stands_for_many_steps(racks):
    usual = Conditions().noise_on(planned_step(racks)).of_typical_run()
    conditions = Conditions(noise=replace(usual, stalls_per_hour=0.0, run_spread=0.0))
    mean = mean_step(racks, conditions, seed=1)
    many = run_plan(racks, conditions, 1500, seed=2).steps.step_s[1:]
    assert mean.seconds == pytest.approx(racks.step_s * np.mean(many) / np.median(many), rel=0.002)
    assert mean_step(racks, Conditions(noise=QUIET), 0).seconds == pytest.approx(racks.step_s, rel=1e-12)


def test_the_noise_of_a_healthy_machine_is_in_the_prediction_and_more_of_it_adds_to_a_step(racks):
    usual = mean_step(racks, Conditions(), 0)
    assert usual.median_s == pytest.approx(racks.step_s, rel=1e-12) and racks.step_s < usual.seconds < 1.01 * racks.step_s
    noisy = mean_step(racks, Conditions(jitter=4.0), 0)
    slow = mean_step(racks, Conditions(slow=(Slow(rank=3, factor=1.3),)), 0)
    assert usual.seconds < noisy.seconds < slow.seconds
    assert sum(slow.parts_s.values()) == pytest.approx(slow.seconds, rel=1e-9)


def test_a_date_and_an_amount_have_chances(racks):
    long = replace(racks, workload=replace(racks.workload, convergence=None, num_tokens=2e11))
    conditions = Conditions()
    seen = outlook(long, conditions, campaign_of(long, failures("llama3"), None, None), 0, 10, 5 * DAY)
    ended = finish(long, seen, 0.003, 0, 400)
    middle_s, middle_usd = float(np.median(ended.wall_s)), float(np.median(ended.cost_usd))
    assert ended.chance_by(middle_s) == pytest.approx(0.5, abs=0.01)
    assert ended.chance_under(middle_usd) == pytest.approx(0.5, abs=0.01)
    assert (ended.chance_by(0.1 * middle_s), ended.chance_by(10 * middle_s)) == (0.0, 1.0)
    ideal_s = long.workload.num_steps() * long.step_s
    assert 0.8 * ideal_s < middle_s < 1.5 * ideal_s


def test_larger_machines_are_interrupted_more_and_do_less():
    rows = list(sizes(failures("llama3"), 8, seed=0, days=10, num_seeds=10, of=(2048, 16384, 131072)))
    assert [row.interruptions_per_day for row in rows] == sorted(row.interruptions_per_day for row in rows)
    assert [row.goodput for row in rows] == sorted((row.goodput for row in rows), reverse=True)
    assert all(row.interval_s == pytest.approx(row.daly_s, rel=0.01) for row in rows)
