"""The ledger: every paid second in one state, money to the cent, energy metered or modelled; of lived and simulated runs."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.ledger import (
    STATES,
    Budget,
    Rate,
    ledger_csv,
    ledger_json,
    ledger_of,
    ledger_of_run,
    predicted_s,
    rate_of,
    read_budget,
    read_rate,
)
from meshwright.ledger.book import in_cents, to_cent
from meshwright.ledger.energy import energy_of
from meshwright.plan.plan import Plan, plan_bytes, plan_of
from meshwright.predict.outcome import Spread, outcome
from meshwright.record.entries import PARTS, Event, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import Run
from meshwright.record.writer import RunWriter
from meshwright.simulator.failures import failures
from meshwright.simulator.noise import QUIET
from meshwright.simulator.outlook import campaign_of, outlook
from meshwright.simulator.run import Conditions, Paid, run_plan, write_run
from meshwright.simulator.weeks_record import write_weeks
from meshwright.units import DAY, HOUR

DOLLAR_A_SECOND = Rate(usd_per_gpu_hour=Decimal(3600), provider="us", kind="given", date="2026-11-15", source="a test")
PARTS_S = {"compute": 5.0, "optimizer": 1.0, "exposed_tp": 1.0, "exposed_dp": 0.5, "bubble": 1.5, "data": 0.25, "overhead": 0.25}  # of 10 s


@cache
def racks() -> Plan:
    model, workload = load_model("llama-3.1-405b"), replace(load_workload("mlperf-llama31-405b"), global_batch=32)
    cluster = load_cluster("azure-gb200-128").resized(256)
    layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1", Job(model, cluster, workload).usual_layout())
    return plan_of(Job(model, cluster, workload).forecast(layout))


def step(number: int, step_s: float = 10.0, **extra: float) -> StepRecord:
    parts = {part: value * step_s / 10 for part, value in PARTS_S.items()}
    return StepRecord(step=number, samples=number, loss=1.0, grad_norm=1.0, step_s=step_s, parts_s=parts, extra=extra)


def new(tmp_path: Path, num_ranks: int = 4, plan: Plan | None = None, name: str = "a", kind: str = "trained") -> RunWriter:
    header = RunHeader(name=name, kind=kind, seed=0, num_ranks=num_ranks, machine="four")
    return RunWriter.create(tmp_path, header, plan_bytes(plan) if plan else None)


def start(writer: RunWriter, time_s: float = 2.0, kind: str = "start", after: int = 0, **detail: object) -> None:
    writer.event(kind, after, time_s, price=DOLLAR_A_SECOND.to_json(), **detail)


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    """Four accelerators at a dollar a second: start 2 s, two steps of 10 s, a gap of 1 s, an evaluation of 3 s, a step, a save of 4 s."""
    with new(tmp_path) as writer:
        start(writer)
        writer.step(step(1))
        writer.step(step(2))
        writer.event("evaluation", 2, 26.0, seconds=3.0, loss=1.0)
        writer.step(step(3))
        writer.event("checkpoint", 3, 40.0, saved_step=3, stall_s=4.0, write_s=1.0, commit_s=1.0)
        writer.finish("finished")
    return tmp_path / "a"


def test_a_run_worked_by_hand(lived: Path) -> None:
    ledger = ledger_of(lived)
    seconds = {
        "compute": 3 * 6 + 3,
        "exposed": 3 * 1.5,
        "bubble": 3 * 1.5,
        "stalled": 0,
        "checkpoint": 4,
        "idle": 2 + 1 + 3 * 1,
    }  # no part has 0.5 s of a step
    assert ledger.gpu_seconds == pytest.approx({state: 4 * value for state, value in seconds.items()})
    assert (ledger.wall_s, ledger.num_gpus) == (40.0, 4)
    assert ledger.usd == Decimal("160.00")
    assert ledger.usd_by_state == {state: to_cent(Decimal(4 * value)) for state, value in seconds.items()}
    assert [(e.what, e.start_s, e.end_s) for e in ledger.entries if e.state == "idle"] == [
        ("start", 0.0, 2.0), ("steps", 2.0, 22.0), ("between steps", 22.0, 23.0), ("steps", 26.0, 36.0),
    ]  # fmt: skip
    assert ledger.price == DOLLAR_A_SECOND and ledger.lost_gpu_seconds == 0


def test_a_save_behind_the_training_stands_where_it_stalled(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in (1, 2, 3):
            writer.step(step(number))
        writer.event("checkpoint", 3, 30.5, saved_step=1, stall_s=0.5, write_s=9.0, commit_s=2.0)
    ledger = ledger_of(tmp_path / "a")
    (saved,) = (entry for entry in ledger.entries if entry.state == "checkpoint")
    assert (saved.start_s, saved.end_s, ledger.wall_s) == (10.0, 10.5, 30.5)


def test_a_run_that_is_written_is_reported_up_to_its_last_line(lived: Path) -> None:
    with open(lived / "steps.jsonl", "ab") as file:
        file.write(b'{"step": 4, "samples": 4, "loss": 1.0, "grad_no')
    header = json.loads((lived / "run.json").read_text()) | {"status": "running"}
    (lived / "run.json").write_text(json.dumps(header))
    ledger = ledger_of(lived)
    assert ledger.wall_s == 40.0 and "the run has not ended: up to the last step or event" in ledger.notes


def test_nothing_is_paid_between_a_kill_and_the_resume_and_abandoned_steps_are(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in range(1, 6):
            writer.step(step(number))
    with RunWriter.resume(tmp_path / "a", 3) as writer:
        cheaper = replace(DOLLAR_A_SECOND, usd_per_gpu_hour=Decimal(1800))
        writer.event("resumed", 3, 1000.0, price=cheaper.to_json(), starting_s=6.0, num_ranks=2)
        writer.step(step(4))
        writer.event("stopped", 4, 1012.0, message="asked to stop by a signal")
        writer.finish("stopped")
    ledger = ledger_of(tmp_path / "a")
    assert ledger.wall_s == 50 + 6 + 12
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(4 * 50 + 2 * 18)
    assert ledger.usd == Decimal("200.00") + Decimal("18.00")
    assert ledger.lost_gpu_seconds == pytest.approx(4 * 20) and ledger.lost_usd == Decimal("80.00")
    assert {(e.first_step, e.last_step) for e in ledger.entries if e.is_lost} == {(4, 5)}
    assert "the price changed between starts: $1800 and $3600 per accelerator-hour" in ledger.notes


def test_every_life_has_its_own_steps_however_far_back_it_went(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        for number in range(1, 15):
            writer.step(step(number, 1.0))
    for at_s, after, last in ((100.0, 10, 20), (200.0, 5, 8), (300.0, 8, 9)):
        with RunWriter.resume(tmp_path / "a", after) as writer:
            writer.event("resumed", after, at_s, price=DOLLAR_A_SECOND.to_json())
            for number in range(after + 1, last + 1):
                writer.step(step(number, 1.0))
    ledger = ledger_of(tmp_path / "a")
    spans = sorted({(e.start_s, e.end_s, e.first_step, e.last_step, e.is_lost) for e in ledger.entries})
    assert spans == [
        (0.0, 5.0, 1, 5, False), (5.0, 14.0, 6, 14, True), (100.0, 110.0, 11, 20, True),
        (200.0, 203.0, 6, 8, False), (300.0, 301.0, 9, 9, False),
    ]  # fmt: skip
    assert ledger.usd == Decimal(4 * (14 + 10 + 3 + 1)).quantize(Decimal("0.01"))


@pytest.mark.parametrize("kind, detail", [("stall", {"message": "rank 1 waits for rank 0"}), ("nan", {"message": "layer 3"})])
def test_what_broke_is_stalled(tmp_path: Path, kind: str, detail: dict[str, str]) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
        writer.event(kind, 1, 45.0, **detail)
    assert ledger_of(tmp_path / "a").gpu_seconds["stalled"] == pytest.approx(4 * 35)


def test_from_a_fault_to_the_restart_is_stalled(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
        writer.event("fault", 1, 12.0, cause="a link")
        writer.event("restart", 1, 20.0)
        writer.step(step(2))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.gpu_seconds["stalled"], ledger.wall_s) == (4 * 8.0, 30.0)


def test_an_empty_run_costs_nothing_and_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    new(tmp_path, plan=racks(), num_ranks=256).close()
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.wall_s, ledger.usd, ledger.energy_j, ledger.entries) == (0.0, Decimal("0.00"), None, ())
    assert "nothing is recorded yet" in ledger.notes
    assert list(csv.DictReader(io.StringIO(ledger_csv(ledger))))[-1]["what"] == "total"
    with pytest.raises(InputError, match="not a run folder"):
        ledger_of(tmp_path)


def test_steps_without_parts_are_compute_and_parts_beyond_a_step_are_shortened(tmp_path: Path) -> None:
    with new(tmp_path, num_ranks=1) as writer:
        start(writer, 0.0)
        writer.step(StepRecord(step=1, samples=1, loss=None, grad_norm=None, step_s=3.0))
        writer.step(StepRecord(step=2, samples=2, loss=None, grad_norm=None, step_s=4.0, parts_s={"compute": 6.0, "bubble": 2.0}))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.gpu_seconds["compute"], ledger.gpu_seconds["bubble"], ledger.gpu_seconds["idle"]) == pytest.approx((6.0, 1.0, 0.0))
    assert "steps without measured parts count as compute" in ledger.notes


def test_damage_and_a_missing_plan_are_reported(lived: Path) -> None:
    (lived / "steps.jsonl").write_bytes(b"not json\n" + (lived / "steps.jsonl").read_bytes())
    (lived / "abandoned.jsonl").write_text('{"damaged": "x"}\n[1]\n{"step_s": "soon"}\n')
    ledger = ledger_of(lived)
    assert ledger.usd == Decimal("160.00") and ledger.energy_j is None and ledger.energy_source == "unknown"
    assert ledger.notes[0].startswith("the run's plan cannot be read") and "1 damaged lines are left out" in ledger.notes[1]


def test_a_plan_that_is_not_the_runs_own_is_reported_and_gives_neither_price_nor_power(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks()) as writer:
        writer.step(step(1))
    assert ledger_of(tmp_path / "a").usd is not None
    (tmp_path / "a" / "plan.json").write_bytes(plan_bytes(replace(racks(), name="another")))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.usd, ledger.price, ledger.energy_j) == (None, None, None)
    assert ledger.notes[0].startswith("plan.json is not the run's own plan (its digest is ")


def test_a_newer_format_is_refused(lived: Path) -> None:
    (lived / "run.json").write_text(json.dumps(json.loads((lived / "run.json").read_text()) | {"format": 2}))
    with pytest.raises(InputError, match="update meshwright"):
        ledger_of(lived)


def test_without_a_recorded_price_the_catalogue_is_used_and_a_given_one_goes_before_both(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks(), num_ranks=256) as writer:
        writer.event("start", 0, 0.0)
        writer.step(step(1, HOUR))
    ledger, given_ = ledger_of(tmp_path / "a"), ledger_of(tmp_path / "a", price=read_rate("2.5USD/h"))
    listed = rate_of(racks().cluster)
    assert listed is not None and ledger.price == listed and ledger.usd == to_cent(256 * listed.usd_per_gpu_hour)
    assert "no price was recorded with the run: today's price of the catalogue is used" in ledger.notes
    assert given_.usd == Decimal("640.00")


@pytest.mark.parametrize("price", ["abc", {**DOLLAR_A_SECOND.to_json(), "usd_per_gpu_hour": "abc"}])
def test_a_recorded_price_that_cannot_be_read_is_reported_as_that(tmp_path: Path, price: object) -> None:
    with new(tmp_path, plan=racks(), num_ranks=256) as writer:
        writer.event("start", 0, 0.0, price=price)
        writer.step(step(1, HOUR))
    ledger = ledger_of(tmp_path / "a")
    assert ledger.price == rate_of(racks().cluster)
    assert "the price recorded with the run, 'abc', cannot be read: today's price of the catalogue is used" in ledger.notes
    assert not any("no price was recorded" in note for note in ledger.notes)


def test_a_machine_without_a_price_or_a_power_says_so(tmp_path: Path) -> None:
    chip = replace(racks().cluster.accelerator, name="secret", power_cap_w=math.nan)
    with new(tmp_path, plan=replace(racks(), cluster=replace(racks().cluster, accelerator=chip)), num_ranks=256) as writer:
        writer.event("start", 0, 0.0)
        writer.step(step(1))
    ledger = ledger_of(tmp_path / "a")
    assert ledger.usd is None and ledger.usd_by_state is None and ledger.energy_j is None and ledger.carbon_kg is None
    assert any("like 2.5USD/h" in note for note in ledger.notes) and any("power of secret" in note for note in ledger.notes)
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(2560)
    assert "None" not in ledger_csv(ledger)


amounts = st.lists(st.tuples(st.decimals(0, 10**7, places=9, allow_nan=False), st.sampled_from(STATES)), max_size=60)


@given(amounts)
def test_cents_add_up_in_all_and_by_state(rows: list[tuple[Decimal, str]]) -> None:
    exact, groups = [value for value, _ in rows], [group for _, group in rows]
    cents = in_cents(exact, groups)
    assert sum(cents) == to_cent(sum(exact, Decimal(0)))
    assert all(value >= 0 and value == to_cent(value) for value in cents)
    for state in set(groups):
        of_state = [i for i, group in enumerate(groups) if group == state]
        assert abs(sum(cents[i] for i in of_state) - sum(exact[i] for i in of_state)) < Decimal("0.01")


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run that was killed and resumed, with events at any hour."""
    header = RunHeader(name="a", kind="trained", seed=0, num_ranks=draw(st.integers(1, 5000)), machine="m")
    lengths = draw(st.lists(st.floats(1e-3, 1e4), max_size=20))
    part = st.dictionaries(st.sampled_from(PARTS), st.floats(0, 1e4), max_size=4)
    records = [
        StepRecord(step=i + 1, samples=i, loss=None, grad_norm=None, step_s=length, parts_s=draw(part)) for i, length in enumerate(lengths)
    ]
    kinds = st.sampled_from(
        ("evaluation", "checkpoint", "stall", "fault", "restart", "resumed", "nan", "stopped", "what-else", "slow_rank")
    )
    detail = st.fixed_dictionaries({"seconds": st.floats(0, 100), "stall_s": st.floats(0, 100), "saved_step": st.integers(0, 25)})
    rows = draw(st.lists(st.tuples(st.floats(0, 1e5), kinds, st.integers(0, 25), detail), max_size=12))
    events = [
        Event(time_s=time_s, kind=kind, step=after, detail=ledger) for time_s, kind, after, ledger in sorted(rows, key=lambda row: row[0])
    ]
    return Run(Path("nowhere"), header, tuple(records), tuple(events), ())


@given(runs())
def test_every_second_is_in_one_state_and_none_is_paid_twice(run: Run) -> None:
    ledger = ledger_of_run(run, None, price=DOLLAR_A_SECOND)
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(run.header.num_ranks * ledger.wall_s)
    spans = sorted({(entry.start_s, entry.end_s) for entry in ledger.entries})
    assert all(end_s <= start_s * (1 + 1e-12) for (_, end_s), (start_s, _) in pairwise(spans))
    assert math.fsum(end_s - start_s for start_s, end_s in spans) == pytest.approx(ledger.wall_s)
    assert sum((entry.usd or 0 for entry in ledger.entries), Decimal(0)) == ledger.usd
    assert ledger.usd_by_state is not None and sum(ledger.usd_by_state.values()) == ledger.usd
    if run.records and not any(event.kind == "resumed" for event in run.events):
        last_s = max((event.time_s for event in run.events), default=0.0)
        assert ledger.wall_s >= max(last_s, sum(record.step_s for record in run.records)) * (1 - 1e-12)


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


def test_weeks_are_paid_from_start_to_end_with_their_spares(tmp_path: Path) -> None:
    plan = racks()
    plan.write(tmp_path / "racks.json")
    llama = failures("llama3")
    often = replace(llama, causes=tuple(replace(cause, per_accelerator_hour=20 * cause.per_accelerator_hour) for cause in llama.causes))
    seen = outlook(plan, Conditions(), campaign_of(plan, often, None, 1), 4, 2, 54 * DAY)
    sample = run_plan(plan, Conditions(), 20, 4)
    rate = rate_of(plan.cluster)
    ledger = ledger_of(write_weeks(seen, sample, tmp_path, "weeks", tmp_path / "racks.json", Paid(rate=rate)))
    happened, per_node = seen.weeks, plan.cluster.accelerators_per_node
    assert ledger.num_gpus == 256 + per_node and ledger.wall_s == pytest.approx(54 * DAY)
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(ledger.num_gpus * 54 * DAY)
    assert happened.waiting_s[0] > 0 and happened.lost_s[0] > 0
    assert ledger.gpu_seconds["stalled"] == pytest.approx(256 * (happened.down_s[0] + happened.waiting_s[0]), rel=1e-6)
    assert ledger.gpu_seconds["checkpoint"] == pytest.approx(256 * happened.checkpoint_s[0], rel=1e-6)
    assert ledger.lost_gpu_seconds == pytest.approx(256 * happened.lost_s[0], rel=1e-4)
    assert float(ledger.usd) == pytest.approx(float(np.asarray(seen.paid_usd(happened.wall_s))[0]), abs=0.02)
    assert ledger.price == rate


def test_the_table_adds_up_and_no_name_is_a_formula(tmp_path: Path) -> None:
    with new(tmp_path, name='=HYPERLINK("http:") & A1') as writer:
        start(writer, 1.0)
        writer.step(step(1, 0.3333333))
    ledger = ledger_of(next(tmp_path.iterdir()))
    *rows, total = csv.DictReader(io.StringIO(ledger_csv(ledger)))
    assert all(row["run"].startswith("'=") for row in (*rows, total))
    assert sum(Decimal(row["usd"]) for row in rows) == Decimal(total["usd"]) == ledger.usd
    assert sum(float(row["gpu_seconds"]) for row in rows) == pytest.approx(float(total["gpu_seconds"]), abs=1e-4)
    assert {row["state"] for row in rows} <= set(STATES)
    plain = json.loads(json.dumps(ledger_json(ledger), allow_nan=False))
    assert sum(Decimal(str(entry["rounded_usd"])) for entry in plain["entries"]) == Decimal(str(plain["rounded_usd"])) == ledger.usd


@pytest.mark.parametrize(
    "text, usd",
    [("500USD", 500), ("500", 500), ("$500", 500), ("500 USD", 500), (" 500usd ", 500), ("USD 500", 500), ("1.2kUSD", 1200),
     ("3MUSD", 3_000_000), ("1e6", 1_000_000), ("1,200.50 USD", Decimal("1200.50")), ("0.05", Decimal("0.05")), ("500$", 500),
     ("1_000", 1000), ("US$500", 500)],
)  # fmt: skip
def test_amounts_as_people_write_them(text: str, usd: int | Decimal) -> None:
    assert read_budget(text) == usd


@pytest.mark.parametrize(
    "text",
    [
        "",
        "much",
        "-5",
        "0",
        "0USD",
        "500EUR",
        "€500",
        "5 00",
        "1,2",
        "1,2345",
        "nan",
        "inf",
        "1e99",
        "1e999999999",
        "1e-999999999",
        "5mUSD",
        "500USD/h",
        "$",
        "1..2",
        "\u0665",
    ],
)
def test_what_is_no_amount_is_refused_and_the_understood_is_reported(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_budget(text)
    assert caught.value.where == "budget" and "500USD" in caught.value.fix


@pytest.mark.parametrize(
    "text, what",
    [
        ("0USD", "0USD is not above 0"),
        ("1e99", "1e99 is too large an amount"),
        ("1e999999999", "1e999999999 is too large an amount"),
        ("1e-999999999", "1e-999999999 is too small an amount"),
    ],
)
def test_an_amount_out_of_range_is_called_that(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read_budget(text)
    assert caught.value.what == what


@pytest.mark.parametrize("text", ["2.5USD/h", "$2.5/h", "2.5", "2.5 USD per hour", "2.5USD/GPU-hour", "2.5/gpu h"])
def test_prices_as_people_write_them(text: str) -> None:
    rate = read_rate(text)
    assert rate.usd_per_gpu_hour == Decimal("2.5") and rate.kind == "given" and text in rate.source


@pytest.mark.parametrize("text", ["free", "0", "-1USD/h", "2.5USD/day", "1e6USD/h", "2.5EUR/h", "/h"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rate(text)
    assert caught.value.where == "price" and "2.5USD/h" in caught.value.fix


def test_a_recorded_price_comes_back_and_a_damaged_one_is_none() -> None:
    assert Rate.from_json(DOLLAR_A_SECOND.to_json()) == DOLLAR_A_SECOND
    for entry in (
        None,
        5,
        {},
        DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": "NaN"},
        DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": "x"},
    ):
        assert Rate.from_json(entry) is None


def test_a_budget_says_by_how_much_it_would_be_passed() -> None:
    budget = Budget(usd=Decimal(500), rate=DOLLAR_A_SECOND, num_gpus=2, spent_usd=Decimal(100))
    assert budget.seconds_left == 200.0
    budget.check(Spread(200.0, 150.0, 400.0))
    with pytest.raises(InputError) as caught:
        budget.check(Spread(201.0, 150.0, 400.0))
    assert "predicted to cost 502.00 USD (80 % between 400.00 USD and 900.00 USD), 100.00 USD of it spent already" in caught.value.what
    assert caught.value.what.endswith("that is 2.00 USD over the budget of 500.00 USD")
    assert "budget='520USD'" in caught.value.fix
    for seconds, message in {
        Spread(
            201.0, 201.0, 400.0
        ): "(80 % between 502.00 USD and 900.00 USD, none of it below: comparable runs took longer than predicted)",
        Spread(201.0, 150.0, 201.0): "(80 % between 400.00 USD and 502.00 USD, none of it above: comparable runs took less)",
        Spread(201.0, 201.0, 201.0): "predicted to cost 502.00 USD, 100.00 USD of it spent",
    }.items():
        with pytest.raises(InputError) as caught:
            budget.check(seconds)
        assert message in caught.value.what
    assert predicted_s(racks(), racks().workload.num_steps()).value == pytest.approx(racks().time_to_train_s)


@pytest.mark.parametrize(
    "line",
    [
        {"time_s": "NaN", "kind": "stopped", "step": 3},
        {"time_s": "Infinity", "kind": "evaluation", "step": 3, "seconds": 1.0},
        {"time_s": -5, "kind": "resumed", "step": 1},
        {"time_s": 1e300, "kind": "stall", "step": 3},
        {"time_s": 40.0, "kind": "evaluation", "step": 3, "seconds": "NaN"},
        {"time_s": 40.0, "kind": "checkpoint", "step": 3, "saved_step": "x", "stall_s": None},
        {"time_s": 40.0, "kind": "checkpoint", "step": 3, "saved_step": True, "stall_s": -1e300},
        {"time_s": 40.0, "kind": "stall", "step": 3, "seconds": [1]},
        {"time_s": 40.0, "kind": "nobody knows", "step": -7, "price": []},
    ],
)
def test_events_that_make_no_sense_change_nothing(lived: Path, line: dict[str, object]) -> None:
    with open(lived / "events.jsonl", "a") as file:
        file.write(json.dumps(line) + "\n")
    ledger = ledger_of(lived)
    assert (ledger.wall_s, ledger.usd) == (40.0, Decimal("160.00"))


@pytest.mark.parametrize(
    "detail", [{"price": ["x"]}, {"price": {"usd_per_gpu_hour": "-1"}}, {"num_ranks": 0}, {"num_ranks": "4"}, {"starting_s": "NaN"}]
)
def test_a_start_that_makes_no_sense_is_as_if_it_had_no_content(tmp_path: Path, detail: dict[str, object]) -> None:
    with new(tmp_path) as writer:
        writer.event("start", 0, 0.0, **detail)
        writer.step(step(1))
    ledger = ledger_of(tmp_path / "a")
    assert sum(ledger.gpu_seconds.values()) == pytest.approx(40.0) and ledger.usd is None


def test_the_largest_numbers_a_folder_can_hold_are_added_up(tmp_path: Path) -> None:
    with new(tmp_path, num_ranks=2**63 - 1) as writer:
        start(writer, 0.0)
        writer.step(step(1, 1e11))
    with open(tmp_path / "a" / "steps.jsonl", "a") as file:
        file.write(json.dumps({**step(2).to_json(), "step_s": 1e12}) + "\n")
    ledger = ledger_of(tmp_path / "a")
    assert ledger.usd and sum((entry.usd or 0 for entry in ledger.entries), Decimal(0)) == ledger.usd > 10**29
    assert any("1 damaged lines are left out" in note for note in ledger.notes)
