"""Energy of a run: as the prediction has it, as a meter counted it, and the carbon and water that follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.ledger import ledger_of
from meshwright.ledger.energy import energy_of
from meshwright.plan.plan import plan_of
from meshwright.predict.outcome import outcome
from meshwright.simulator.noise import QUIET
from meshwright.simulator.run import Conditions, run_plan, write_run
from meshwright.units import HOUR

from .conftest import new, racks, step


def test_a_quiet_run_draws_what_was_predicted(tmp_path: Path) -> None:
    plan = racks()
    plan.write(tmp_path / "racks.json")
    run = run_plan(plan, Conditions(noise=QUIET))
    ledger = ledger_of(write_run(run, tmp_path, "quiet", tmp_path / "racks.json"))
    spent = outcome(run.planned.forecast.prediction)
    assert spent.energy_j and spent.offer and spent.carbon_kg and spent.water_l
    scale = run.time_to_train_s / spent.time_to_train_s.value  # the walk and the closed form count evaluations alike, to a whole one
    assert scale == pytest.approx(1, rel=0.01)
    assert ledger.energy_j == pytest.approx(spent.energy_j.value * scale, rel=0.01)
    assert ledger.carbon_kg == pytest.approx(spent.carbon_kg.value * scale, rel=0.01)
    assert ledger.energy.facility_year == spent.facility.year and ledger.energy.wue_l_per_kwh == spent.facility.wue_l_per_kwh
    assert ledger.water_l == pytest.approx(spent.water_l.value * scale, rel=0.01)
    assert float(ledger.usd) == pytest.approx(spent.offer.cost_usd.value * scale, rel=1e-6)
    assert ledger.energy_source == "modelled" and ledger.energy.metered_j is None


def test_water_that_nobody_publishes_is_reported() -> None:
    known = energy_of((), None)
    assert (known.wue_l_per_kwh, known.water_of) == (None, "no litres per kWh are published for the industry")
    assert (
        replace(known, facility="azure", facility_year=2025, wue_l_per_kwh=0.27).water_of == "azure, 2025, 0.27 l per kWh of the computers"
    )


def test_a_quiet_run_of_processes_costs_and_draws_what_was_predicted(tmp_path: Path) -> None:
    model, cluster, workload = load_model("llama-2m"), load_cluster("this-machine-2x4"), load_workload("python-stdlib")
    layout = parse_layout("tp=2,pp=2,dp=2,mbs=4", Job(model, cluster, workload).usual_layout())
    forecast = Job(model, cluster, workload).forecast(layout)
    plan = plan_of(forecast)
    plan.write(tmp_path / "cores.json")
    run = run_plan(plan, Conditions(noise=QUIET))
    ledger = ledger_of(write_run(run, tmp_path, "quiet", tmp_path / "cores.json"))
    spent = forecast.outcome
    assert spent.time_to_train_s and spent.energy_j and spent.offer and spent.carbon_kg and ledger.usd_unrounded is not None
    assert run.time_to_train_s == pytest.approx(spent.time_to_train_s.value, rel=1e-3)
    assert ledger.energy_j == pytest.approx(spent.energy_j.value, rel=1e-3)
    assert ledger.carbon_kg == pytest.approx(spent.carbon_kg.value, rel=1e-3)
    assert float(ledger.usd_unrounded) == pytest.approx(spent.offer.cost_usd.value, rel=1e-3)


def test_what_a_meter_counted_goes_before_the_model(tmp_path: Path) -> None:
    plan = racks()
    cap_w = plan.cluster.accelerator.power_cap_w
    for name, energies in (("metered", (1.0, 1.0)), ("partly", (1.0, None)), ("half", (0.5, 0.5))):
        with new(tmp_path, plan=plan, num_ranks=256, name=name) as writer:
            writer.event("start", 0, 0.0)
            for number, share in enumerate(energies, 1):
                record = step(number) if share is None else step(number, energy_j=share * cap_w * 10.0 * 256)
                writer.step(record)
    metered, partly, half = (ledger_of(tmp_path / name) for name in ("metered", "partly", "half"))
    assert metered.energy_source == half.energy_source == "metered" and partly.energy_source == "metered in part"
    assert metered.energy.metered_j == pytest.approx(cap_w * 20 * 256) == pytest.approx(2 * half.energy.metered_j)
    assert metered.energy_j and half.energy_j and metered.energy_j > metered.energy.metered_j  # hosts come on top
    assert metered.energy_j - half.energy_j == pytest.approx(0.5 * cap_w * 20 * 256, rel=0.2)  # but for losses of the supply
    assert any("a meter measured the accelerators in 50%" in note for note in partly.notes)
    assert sum(entry.joules or 0 for entry in metered.entries) == pytest.approx(metered.energy_j)


def test_another_region_changes_the_carbon_alone(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks(), num_ranks=256) as writer:
        writer.event("start", 0, 0.0)
        writer.step(step(1, HOUR))
    here, there = (ledger_of(tmp_path / "a", region=region) for region in ("", "norway"))
    assert here.energy_j == there.energy_j and there.carbon_kg < here.carbon_kg / 3
    with pytest.raises(InputError, match="no region named"):
        ledger_of(tmp_path / "a", region="atlantis")
