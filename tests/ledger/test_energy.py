"""Energy of a run: as the prediction has it, as a meter counted it, and the carbon and water that follow."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe import economics
from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.ledger import ledger_of
from meshwright.ledger.book import STATE_OF
from meshwright.ledger.energy import energy_of
from meshwright.ledger.timeline import Span
from meshwright.plan.plan import Plan, job_of, plan_of
from meshwright.predict.outcome import DEFAULT_REGION, outcome, power_constants
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
    assert any("a meter measured the accelerators in 50 %" in note for note in partly.notes)
    assert sum(entry.joules or 0 for entry in metered.entries) == pytest.approx(metered.energy_j)


def test_another_region_changes_the_carbon_alone(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks(), num_ranks=256) as writer:
        writer.event("start", 0, 0.0)
        writer.step(step(1, HOUR))
    here, there = (ledger_of(tmp_path / "a", region=region) for region in ("", "norway"))
    assert here.energy_j == there.energy_j and there.carbon_kg < here.carbon_kg / 3
    with pytest.raises(InputError, match="no region named"):
        ledger_of(tmp_path / "a", region="atlantis")


def span(uses_s: dict[str, float], *, start_s: float = 0.0, num_gpus: int = 4, metered_j: float | None = None, what: str = "steps") -> Span:
    took_s = sum(uses_s.values())
    return Span(start_s=start_s, end_s=start_s + took_s, what=what, uses_s=uses_s, num_gpus=num_gpus, metered_j=metered_j)


def stated(power_cap_w: float = 1000.0, overhead_w: float = 400.0) -> Plan:
    """The plan with a chip of so many watts, and nodes of four that state so many beside them."""
    cluster = racks().cluster
    chip = replace(cluster.accelerator, power_cap_w=power_cap_w)
    return replace(racks(), cluster=replace(cluster, accelerator=chip, accelerators_per_node=4, node_overhead_w=overhead_w))


def test_energy_worked_by_hand() -> None:
    # A node of four: 4 x 1000 W and 400 W beside. Work at the cap but for the release's slowdown; waiting draws a fraction of it.
    waiting = power_constants().waiting_fraction
    found = energy_of([span({"compute": 6.0, "exposed_tp": 2.0, "bubble": 1.0, "exposed_dp": 1.0})], stated())
    (by_use,) = found.by_span
    assert by_use is not None
    busy = 1.0 / max(math.exp(job_of(stated()).log_factor), 1.0)
    assert by_use["compute"] == pytest.approx(6 * (4000 * (waiting + (1 - waiting) * busy) + 400))
    assert by_use["exposed_tp"] == pytest.approx(2 * 4400)
    assert by_use["bubble"] == by_use["exposed_dp"] == pytest.approx(4000 * waiting + 400)
    assert found.wall_j == pytest.approx(sum(by_use.values())) and found.source == "modelled" and found.metered_j is None
    halls, grid = economics.facility(stated().cluster.provider), economics.region(found.region)
    assert found.facility_j == pytest.approx(found.wall_j * halls.pue)
    assert found.carbon_kg == pytest.approx(found.facility_j / 3.6e6 * grid.grid_gco2e_per_kwh / 1000)


def test_a_metered_span_of_stated_nodes_is_what_the_meter_saw_and_the_rest_of_the_node() -> None:
    found = energy_of([span({"compute": 9.0, "bubble": 1.0}, metered_j=4 * 700.0 * 10)], stated())
    assert found.wall_j == pytest.approx((4 * 700 + 400) * 10)
    assert (found.source, found.metered_j) == ("metered", 28000.0)
    (by_use,) = found.by_span
    assert by_use is not None and sum(by_use.values()) == pytest.approx(found.wall_j) and by_use["compute"] > 9 * by_use["bubble"]


def test_no_span_draws_nothing_that_is_known() -> None:
    found = energy_of((), stated())
    assert (found.wall_j, found.metered_j, found.facility_j, found.carbon_kg, found.water_l) == (None,) * 5
    assert found.source == "unknown" and found.by_span == () and found.notes == ()


def test_one_span_of_unknown_power_makes_the_sum_unknown_and_keeps_what_is_known() -> None:
    known, unknown = span({"compute": 1.0}, metered_j=400.0), span({"compute": 1.0}, start_s=1.0)
    found = energy_of([known, unknown], None)
    assert found.wall_j is None and found.carbon_kg is None and found.metered_j == 400.0
    assert found.by_span == ({"compute": 400.0}, None)
    assert any("a meter measured the accelerators in 50 % of their seconds" in note for note in found.notes)


@pytest.mark.parametrize("plan", [None, stated(power_cap_w=math.nan)])
def test_metered_accelerators_of_unknown_power_are_known_and_their_hosts_are_left_out(plan: Plan | None) -> None:
    found = energy_of([span({"compute": 2.0, "bubble": 2.0}, metered_j=4000.0)], plan)
    assert (found.wall_j, found.source) == (4000.0, "metered")
    assert found.by_span == ({"compute": 2000.0, "bubble": 2000.0},)
    assert "a meter measured the accelerators in 100 % of their seconds; hosts are left out" in found.notes
    assert not any("energy is unknown" in note for note in found.notes)


def test_software_that_is_not_at_hand_is_priced_at_the_cap_and_reported() -> None:
    found = energy_of([span({"compute": 1.0})], replace(stated(), software="a-release-of-nobody"))
    assert found.wall_j == pytest.approx(4400.0)
    assert "the software 'a-release-of-nobody' is not at hand: compute is priced at the power cap" in found.notes


def test_what_is_assumed_of_the_place_is_reported() -> None:
    plan = stated()
    nowhere = replace(plan, cluster=replace(plan.cluster, provider="", region=""))
    notes = energy_of([span({"compute": 1.0})], nowhere).notes
    assert f"{plan.cluster.name} names no region: the grid of {DEFAULT_REGION} is assumed" in notes
    assert "cooling and distribution as in the industry's mean hall" in notes and "water is unknown: no provider is named" in notes
    assert not any("names no region" in note for note in energy_of([span({"compute": 1.0})], nowhere, "norway").notes)


def test_every_use_of_the_ledger_has_a_power() -> None:
    found = energy_of([span(dict.fromkeys(STATE_OF, 1.0))], stated())
    (by_use,) = found.by_span
    assert by_use is not None and set(by_use) == set(STATE_OF)
    assert all(400 <= joules <= 4400 for joules in by_use.values())
