"""Weeks of a plan: effective time, cost, chances, sizes, and the error of standing in for steps with their mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.ledger.timeline import spans_of
from meshwright.plan.plan import job_of
from meshwright.record.run import read_run
from meshwright.simulator.exposure import exposed_between_replicas
from meshwright.simulator.failures import failures
from meshwright.simulator.noise import QUIET
from meshwright.simulator.outlook import SAMPLED_STEPS, campaign_of, finish, mean_step, outlook, sizes
from meshwright.simulator.planned_step import planned_step
from meshwright.simulator.run import Conditions, run_plan
from meshwright.simulator.weeks_record import write_weeks
from meshwright.units import DAY


def test_the_mean_of_a_sample_stands_for_many_steps(racks):
    usual = Conditions().noise_on(planned_step(racks)).of_typical_run()
    conditions = Conditions(noise=replace(usual, stalls_per_hour=0.0, run_spread=0.0))
    mean = mean_step(racks, conditions, seed=1)
    many = run_plan(racks, conditions, 1500, seed=2).steps.step_s[1:]
    assert mean.seconds == pytest.approx(np.mean(many), rel=0.002)
    assert mean_step(racks, Conditions(noise=QUIET), 0).seconds == pytest.approx(racks.step_s, rel=1e-12)


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


def test_weeks_are_written_with_every_interruption(racks, tmp_path):
    racks.write(tmp_path / "racks.json")
    campaign = campaign_of(racks, failures("llama3"), 600.0, 2)
    seen = outlook(racks, Conditions(), campaign, 4, 3, 54 * DAY)
    sample = run_plan(racks, Conditions(), SAMPLED_STEPS + 1, 4)
    run = read_run(write_weeks(seen, sample, tmp_path, "weeks", tmp_path / "racks.json"))
    faults = [event for event in run.events if event.kind == "fault"]
    assert len(faults) == seen.weeks.interruptions[0].sum() > 0
    assert len(run.records) == SAMPLED_STEPS + 1
    assert run.events[-1].kind == run.header.status == "finished" and not run.damage
    assert spans_of(run)[-2].end_s == pytest.approx(
        54 * DAY
    )  # the last before the spares: its end is read as that of weeks that were stopped


def test_the_exposed_time_has_an_interval_around_it(record):
    mean = exposed_between_replicas(job_of(record), record.layout)
    assert 0 < mean.low_s < mean.seconds < mean.high_s
    assert mean.seconds == pytest.approx(record.parts_s["exposed_dp"], rel=1e-9)
