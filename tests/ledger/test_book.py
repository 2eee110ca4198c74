"""The ledger: every paid second in one state, and money to the cent; also of damaged, empty and unpriced runs."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.ledger import STATES, ledger_csv, ledger_of, ledger_of_run, rate_of, read_rate
from meshwright.ledger.book import STATE_OF, in_cents, to_cent
from meshwright.record.entries import PARTS, Event, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import Run
from meshwright.record.writer import RunWriter
from meshwright.units import HOUR

from .conftest import DOLLAR_A_SECOND, new, racks, start, step


def test_a_run_worked_by_hand(lived: Path) -> None:
    ledger = ledger_of(lived)
    seconds = {
        "compute": 3 * 6 + 3,
        "exposed": 3 * 1.5,
        "bubble": 3 * 1.5,
        "stalled": 0,
        "recovering": 0,
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


def test_a_run_that_is_written_is_reported_up_to_its_last_line(lived: Path) -> None:
    with open(lived / "steps.jsonl", "ab") as file:
        file.write(b'{"step": 4, "samples": 4, "loss": 1.0, "grad_no')
    header = json.loads((lived / "run.json").read_text()) | {"status": "running"}
    (lived / "run.json").write_text(json.dumps(header))
    ledger = ledger_of(lived)
    assert ledger.wall_s == 40.0 and "the run has not ended: up to the last step or event" in ledger.notes


def test_an_empty_run_costs_nothing_and_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    new(tmp_path, plan=racks(), num_ranks=256).close()
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.wall_s, ledger.usd, ledger.energy_j, ledger.entries) == (0.0, Decimal("0.00"), None, ())
    assert "nothing is recorded yet" in ledger.notes
    assert list(csv.DictReader(io.StringIO(ledger_csv(ledger))))[-1]["what"] == "total"
    with pytest.raises(InputError, match="not a run folder"):
        ledger_of(tmp_path)


def test_damage_and_a_missing_plan_are_reported(lived: Path) -> None:
    (lived / "steps.jsonl").write_bytes(b"not json\n" + (lived / "steps.jsonl").read_bytes())
    (lived / "abandoned.jsonl").write_text('{"damaged": "x"}\n[1]\n{"step_s": "soon"}\n')
    ledger = ledger_of(lived)
    assert ledger.usd == Decimal("160.00") and ledger.energy_j is None and ledger.energy_source == "unknown"
    assert ledger.notes[0].startswith("the run's plan cannot be read") and "1 damaged lines are left out" in ledger.notes[1]


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
    assert any("2.5USD/h" in note for note in ledger.notes) and any("power of secret" in note for note in ledger.notes)
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


def test_the_largest_numbers_a_folder_can_hold_are_added_up(tmp_path: Path) -> None:
    with new(tmp_path, num_ranks=2**63 - 1) as writer:
        start(writer, 0.0)
        writer.step(step(1, 1e11))
    with open(tmp_path / "a" / "steps.jsonl", "a") as file:
        file.write(json.dumps({**step(2).to_json(), "step_s": 1e12}) + "\n")
    ledger = ledger_of(tmp_path / "a")
    assert ledger.usd and sum((entry.usd or 0 for entry in ledger.entries), Decimal(0)) == ledger.usd > 10**29
    assert any("1 damaged lines are left out" in note for note in ledger.notes)


def test_cents_that_many_small_amounts_need_are_given_one_by_one() -> None:
    thirds = [Decimal(1) / 3] * 3
    assert in_cents(thirds, ["a", "a", "a"]) == [Decimal("0.33"), Decimal("0.34"), Decimal("0.33")]
    assert in_cents([Decimal("0.001")] * 10, ["a"] * 10).count(Decimal("0.01")) == 1
    assert in_cents([], []) == [] and in_cents([Decimal(0)], ["a"]) == [Decimal("0.00")]


def test_half_a_cent_goes_to_the_even_one() -> None:
    assert [to_cent(Decimal(usd)) for usd in ("0.005", "0.015", "0.0151")] == [Decimal("0.00"), Decimal("0.02"), Decimal("0.02")]


def test_every_use_that_a_timeline_or_a_step_knows_has_a_state() -> None:
    assert set(STATE_OF.values()) == set(STATES) and set(PARTS) <= set(STATE_OF)


def test_a_run_whose_plan_changed_says_whose_power_it_has(lived: Path) -> None:
    (lived / "plan-until-step-2.json").write_text("{}")
    assert ledger_of(lived).notes[0] == "the run changed its plan: power is that of the last one"


def test_a_long_recorded_price_is_cut_and_one_life_without_a_price_leaves_the_whole_unknown(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1))
    with RunWriter.resume(tmp_path / "a", 1) as writer:
        writer.event("resumed", 1, 50.0, price="x" * 500)
        writer.step(step(2))
    ledger = ledger_of(tmp_path / "a")
    assert ledger.usd is None and ledger.lost_usd is None and {entry.usd for entry in ledger.entries} == {None}
    (unread,) = (note for note in ledger.notes if "cannot be read" in note and "price" in note)
    assert len(unread) < 100 and any("2.5USD/h" in note for note in ledger.notes)
