"""Energy of weeks: the ledger's watts for the mean run of all seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.hardware import Accelerator
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_of
from meshwright.predict.outcome import busy_seconds, node_w, power_constants
from meshwright.simulator.simulation import Simulation, simulate
from meshwright.units import DAY

FORECAST = Job("llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", gpus=64).forecast("tp=2,mbs=1")


def weeks(**options: object) -> Simulation:
    return simulate(FORECAST, days=10, **options)  # type: ignore[arg-type]


def test_the_watts_of_a_machine_on_which_nothing_fails() -> None:
    seen = weeks(failures="none", noise=False)
    work_s = float(seen.outlook.weeks.work_s[0])
    busy = float(busy_seconds(FORECAST.prediction)[0][0]) / FORECAST.step_s * work_s / (10 * DAY)
    watts, _ = node_w(FORECAST.job.cluster, busy, power_constants())
    assert seen.outlook.campaign.num_spares == 0 and seen.energy_j == pytest.approx(8 * watts * 10 * DAY, rel=1e-3)


def test_the_energy_is_that_of_the_written_run_where_there_is_one_seed(tmp_path) -> None:
    seen = weeks(runs=tmp_path)
    assert seen.ledger.energy_j == pytest.approx(seen.energy_j, rel=1e-4)


def test_spares_and_waiting_nodes_draw_power_too() -> None:
    alone, spared = (weeks(failures="none", spares=count) for count in (0, 4))
    waiting_w, _ = node_w(FORECAST.job.cluster, 0.0, power_constants())
    assert spared.energy_j - alone.energy_j == pytest.approx(4 * waiting_w * 10 * DAY, rel=1e-6)


def test_energy_is_unknown_where_the_power_of_the_accelerator_is() -> None:
    plan = plan_of(FORECAST)
    chip: Accelerator = replace(plan.cluster.accelerator, power_cap_w=float("nan"))
    nameless: Plan = replace(plan, cluster=replace(plan.cluster, accelerator=chip))
    assert simulate(nameless, days=1).energy_j is None
