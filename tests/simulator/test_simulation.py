"""A plan simulated, from options to one value: what is asked for, what comes back, what is refused before anything runs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.plan.plan import Plan, forecast_of
from meshwright.record.run import read_run
from meshwright.simulator import simulation
from meshwright.simulator.noise import QUIET
from meshwright.simulator.noise_classes import usual_noise
from meshwright.simulator.planned_step import planned_step
from meshwright.simulator.run import Conditions, run_plan
from meshwright.simulator.simulation import RANGES, Simulation, simulate
from meshwright.simulator.step import Slow
from meshwright.units import DAY, HOUR, per_cent


@pytest.fixture
def endless(racks) -> Plan:
    """The plan of a workload without an end."""
    return replace(racks, workload=replace(racks.workload, convergence=None, num_tokens=0.0, target=""))


def test_it_is_the_run_of_the_same_conditions(racks):
    found = simulate(racks, steps=6, seed=2)
    assert found.run is not None and found.outlook is None and not found.interrupted
    assert (found.run.steps.step_s == run_plan(racks, Conditions(), 6, 2).steps.step_s).all()
    assert found.step_s == np.median(found.run.times.steady_s) and found.goodput is None and found.waste_usd is None


def test_a_plan_its_forecast_and_its_file_are_simulated_alike(racks, tmp_path):
    racks.write(tmp_path / "racks.json")
    path = tmp_path / "racks.json"
    times = [simulate(given, steps=4, seed=1).run.steps.step_s.tolist() for given in (racks, forecast_of(racks), path, str(path))]
    assert all(one == times[0] for one in times)


def test_without_noise_every_step_is_the_predicted_one(racks):
    found = simulate(racks, steps=3, noise=False)
    assert found.conditions.noise == QUIET
    assert found.run.steps.step_s == pytest.approx([racks.step_s] * 3, rel=1e-12)


def test_jitter_scales_the_noise_that_logs_show(racks):
    planned = planned_step(racks)
    usual, twice = (simulate(racks, steps=1, jitter=jitter).conditions.noise_on(planned) for jitter in (1.0, 2.0))
    assert usual == usual_noise(planned.forecast.job, racks.layout) and twice == usual.scaled(2.0) != usual


def test_without_a_number_of_steps_the_whole_workload_is_simulated(small):
    plan = small("tp=4,dp=2", 8)
    short = replace(plan, workload=replace(plan.workload, convergence=None, num_tokens=5.0 * plan.workload.tokens_per_step))
    found = simulate(short)
    assert len(found.run.steps) == 5 and found.run.is_whole and found.time_to_train_s == found.run.simulated_s


def test_what_a_run_costs_is_accelerators_times_hours_times_price(racks):
    found = simulate(racks, steps=3, price="4.5")
    assert found.cost_usd == pytest.approx(256 * found.run.simulated_s / HOUR * 4.5)


def test_slow_ranks_are_given_as_numbers_or_as_text_and_shown_beside_the_run_without_them(racks):
    by_number, by_text = (simulate(racks, steps=4, slow_rank=given) for given in ({100: 1.3}, ["100=1.3"]))
    assert by_number.conditions.slow == by_text.conditions.slow == (Slow(rank=100, factor=1.3),)
    assert by_number.step_s == by_text.step_s > by_number.without_slow.times.median_s == simulate(racks, steps=4).step_s
    assert simulate(racks, steps=4).without_slow is None


def test_many_seeds_give_the_first_run_and_the_mean_of_all(racks):
    found = simulate(racks, steps=4, seed=3, seeds=3)
    each = [simulate(racks, steps=4, seed=seed) for seed in (3, 4, 5)]
    assert found.run.steps.step_s.tolist() == each[0].run.steps.step_s.tolist()
    assert found.over_seeds["median_step_s"].mean == pytest.approx(np.mean([one.step_s for one in each]))
    assert each[0].over_seeds is None


def test_progress_counts_the_seeds(racks):
    seen = []
    simulate(racks, steps=2, seeds=3, progress=lambda *given: seen.append(given))
    assert seen == [("simulating runs", number, 3) for number in (1, 2, 3)]


def test_exposed_time_has_an_interval_unless_chance_decides_it(racks):
    assert simulate(racks, steps=1).exposed.low_s < simulate(racks, steps=1).exposed.high_s
    assert simulate(racks, steps=1, routing="hashed").exposed is None
    assert simulate(racks, steps=1, planes_lost=1, nics_hit=3).exposed is None
    assert simulate(racks, days=1).exposed is None


def test_weeks_lose_time_and_money(racks):
    found = simulate(racks, days=10, seeds=4)
    assert found.run is None and 0.5 < found.goodput < 1.0 and found.finish is None and found.sizes == ()
    assert found.outlook.weeks.wall_s == pytest.approx([10 * DAY] * 4)
    usd_an_hour = float(found.rate.usd_per_gpu_hour)
    spares = found.outlook.campaign.num_spares * found.outlook.campaign.accelerators_per_node
    assert found.cost_usd == pytest.approx((256 + spares) * 240 * usd_an_hour)
    useful_usd = 256 * 240 * found.goodput * usd_an_hour
    assert found.waste_usd == pytest.approx(found.cost_usd - useful_usd)
    assert str(found) == f"{racks.name}, seed 0: 10 days, effective time {per_cent(found.goodput, '.2f')}"
    assert repr(found) == f"Simulation({found})"


def test_the_time_of_the_whole_workload_is_its_work_at_the_pace_of_the_weeks(racks, endless):
    found = simulate(racks, days=10, seeds=2)
    assert found.time_to_train_s == pytest.approx(found.outlook.step.workload_s / found.goodput, rel=0.02)
    assert simulate(endless, days=2).time_to_train_s is None
    assert simulate(endless, steps=2).time_to_train_s is None


def test_a_date_has_a_chance_and_the_mean_end_is_the_time_to_train(racks, monkeypatch):
    monkeypatch.setattr(simulation, "FINISH_SEEDS", 50)
    found = simulate(racks, days=2, finish_by="1d")
    assert found.finish_by_s == DAY and len(found.finish.wall_s) == 50
    assert found.time_to_train_s == pytest.approx(np.mean(found.finish.wall_s), rel=0.02)


def test_other_sizes_are_simulated_when_asked_for(racks, monkeypatch):
    monkeypatch.setattr(simulation, "MOST_SIZE_SEEDS", 2)
    found = simulate(racks, days=1, seeds=3, sizes=True)
    assert [size.num_accelerators for size in found.sizes] == list(simulation.SIZES)


@pytest.mark.parametrize("zone", ["", "+00:00", "-05:00", "+09:30"])
def test_a_date_to_finish_by_may_have_a_time_zone(racks, monkeypatch, zone):
    monkeypatch.setattr(simulation, "FINISH_SEEDS", 10)
    offset = timedelta(hours={"-05:00": -5, "+09:30": 9.5}.get(zone, 0))
    wanted = datetime.now(UTC) + timedelta(days=3)
    found = simulate(racks, days=1, finish_by=(wanted + offset).strftime("%Y-%m-%dT%H:%M:%S") + zone)
    assert found.finish_by_s == pytest.approx(3 * DAY, abs=60)


def test_a_budget_ends_a_run_at_the_last_step_that_it_pays_for(racks, tmp_path):
    # without an evaluation: 100 steps of 1.2 s on 256 accelerators at 3,600 USD an hour, with money for half of them
    plan = replace(racks, workload=replace(racks.workload, evaluation=None))
    whole = simulate(plan, steps=100, noise=False, price="3600")
    slower = {"slow_rank": {0: 2.0}, "noise": False, "price": "3600", "budget": f"{1.05 * whole.cost_usd:.2f}"}
    found = simulate(plan, steps=100, runs=tmp_path, name="cut", **slower)
    assert found.is_cut and 0 < len(found.run.steps) < 100 and not found.interrupted
    assert found.cost_usd <= float(found.budget.usd) < found.cost_usd + 256 * 2 * plan.step_s
    written = read_run(tmp_path / "cut")
    assert (written.header.status, written.events[-1].detail["reason"]) == ("stopped", "budget")


def test_the_first_seeds_run_is_written_with_its_plan_and_read_back(racks, tmp_path):
    found = simulate(racks, steps=3, seed=5, runs=tmp_path)
    written = read_run(found.folder)
    assert found.folder == tmp_path / "plan-seed5" and (len(written.records), written.header.seed) == (3, 5)
    assert (found.folder / "plan.json").exists() and found.ledger.wall_s == pytest.approx(found.run.simulated_s, rel=1e-6)
    assert simulate(racks, steps=3).folder is None and simulate(racks, steps=3).ledger is None


def test_a_run_gets_a_free_name_after_its_plan_file(racks, tmp_path):
    racks.write(tmp_path / "racks.json")
    names = [simulate(tmp_path / "racks.json", steps=1, seed=7, runs=tmp_path / "runs").folder.name for _ in range(3)]
    assert names == ["racks-seed7", "racks-seed7-2", "racks-seed7-3"]


def test_a_ledger_of_very_many_steps_is_not_read_back(racks, tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "LEDGER_STEPS", 2)
    assert simulate(racks, steps=3, runs=tmp_path).ledger is None
    assert simulate(racks, steps=2, runs=tmp_path).ledger is not None


def test_broken_off_between_seeds_the_runs_so_far_are_kept(racks, monkeypatch):
    def progress(what: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    found = simulate(racks, steps=2, seeds=5, progress=progress, slow_rank={0: 1.1})
    assert found.interrupted and found.over_seeds["median_step_s"].mean > 0 and found.without_slow is None


def test_broken_off_before_the_first_run_there_is_nothing_to_keep(racks, monkeypatch):
    def broken(*given: object, **more: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "run_plan", broken)
    with pytest.raises(KeyboardInterrupt):
        simulate(racks, steps=2, seeds=2)


@pytest.mark.parametrize("name", RANGES)
def test_numbers_out_of_their_range_are_refused(name, racks):
    least, most = RANGES[name]
    for number in (least - 1, most + 1):
        with pytest.raises(InputError, match=f"{name} cannot be {number}") as caught:
            simulate(racks, **{name: number})
        assert (caught.value.where, caught.value.fix) == (name, f"give a number from {least:,} to {most:,}")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"steps": 2, "spares": 0}, "spares: only valid with days"),
        ({"steps": 2, "failures": "llama3", "sizes": True}, "failures, sizes: only valid with days"),
        ({"steps": 2, "days": 3}, "steps is not valid with days"),
        ({"days": 0}, "days is 0"),
        ({"nics_hit": 3}, "nics_hit is 3, and planes_lost is 0"),
        ({"storage": 0.0}, "storage is 0 GB/s"),
        ({"storage": float("inf")}, "storage is inf GB/s"),
        ({"slow_rank": ["x=1.3"]}, "cannot read 'x=1.3'"),
        ({"slow_rank": ["3"]}, "cannot read '3'"),
        ({"slow_rank": "3=1.3"}, "slow_rank is '3=1.3', not a mapping"),
        ({"slow_rank": {256: 1.3}}, "there is no rank 256"),
        ({"days": 1, "finish_by": "2020-01-01"}, "2020-01-01 has passed"),
        ({"days": 1, "finish_by": "2027-99-01"}, "cannot read a date in '2027-99-01'"),
        ({"days": 1, "finish_by": "soon"}, "cannot read a duration in 'soon'"),
        ({"cluster": "dgx-h100-superpod"}, "the plan is for azure-gb200-128"),
        ({"budget": "1"}, "not started: the run is predicted to cost"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(options, what, racks, tmp_path):
    with pytest.raises(InputError) as caught:
        simulate(racks, runs=tmp_path / "runs", **options)
    assert what in caught.value.what and not (tmp_path / "runs").exists()


def test_a_workload_without_an_end_needs_a_number_of_steps_and_has_no_date(endless):
    with pytest.raises(InputError, match="states neither tokens nor a target"):
        simulate(endless)
    for option in ({"finish_by": "9d"}, {"budget": "1e9"}):
        with pytest.raises(InputError, match="so it has no end"):
            simulate(endless, days=3, **option)


@pytest.mark.parametrize("name", ["../out", "taken"])
def test_a_folder_that_is_taken_or_outside_is_refused(name, racks, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("kept")
    with pytest.raises(InputError):
        simulate(racks, steps=1, runs=tmp_path, name=name)
    assert (tmp_path / "taken" / "file").read_text() == "kept"


def test_the_values_have_a_document_and_a_table(racks):
    found = simulate(racks, steps=2)
    assert isinstance(found, Simulation) and found.to_json()["median_step_s"] == found.step_s
    assert "<table>" in found._repr_html_()
