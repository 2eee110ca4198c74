"""Rows that documents and pages share: numbers worked by hand, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from meshwright.plan.plan import Plan
from meshwright.report.compare import PartTimes
from meshwright.report.facts import RunFacts, facts_of_runs
from meshwright.report.scaling import Point
from meshwright.report.tables import (
    RUN_COLUMNS,
    SCALING_COLUMNS,
    TIME_COLUMNS,
    amount_rows,
    last_loss,
    money,
    or_unknown,
    part_cells,
    percent,
    price,
    run_rows,
    scaling_row,
    sources_of,
    step_rows,
    time_formula,
    time_rows,
)


def facts(folder: Path) -> RunFacts:
    (found,) = facts_of_runs([folder])
    return found


def test_a_run_in_one_row(make_run, record: Plan) -> None:
    # 40 steps of half a second, 16 sequences of 8,192 tokens each.
    row = dict(zip(RUN_COLUMNS, run_rows([facts(make_run("first", plan=record, batch=16))])[0], strict=True))
    tokens_per_s = 16 * record.workload.seq_len / 0.5
    assert row["run"] == "first" and row["model"] == "llama-3.1-405b" and row["ranks>"] == "8,192" and row["steps>"] == "40"
    assert row["median step>"] == "500 ms" and row["time>"] == "20 s" and row["tokens/s>"] == f"{tokens_per_s / 1000:.4g} k"
    assert row["loss>"] == f"{8 / 40**0.2:.4f}" and row["cost>"].startswith("$") and row["energy>"].endswith("Wh")


def test_a_run_of_which_little_is_known(make_run) -> None:
    row = dict(zip(RUN_COLUMNS, run_rows([facts(make_run(kind="simulated"))])[0], strict=True))
    assert (row["model"], row["loss>"], row["cost>"], row["energy>"]) == ("unknown", "-", "unknown", "unknown")
    assert run_rows([]) == []


def test_energies_beside_each_other_have_one_unit(make_run, workstation: Plan) -> None:
    runs = facts_of_runs([make_run("long", plan=workstation, times_s=[3600.0] * 30), make_run("short", plan=workstation)])
    units = {row[-1].split()[-1] for row in run_rows(runs)}
    assert len(units) == 1


def test_the_loss_is_that_of_the_last_evaluation_that_has_one(make_run) -> None:
    events = [("evaluation", 20, 11.0, {"loss": 4.25}), ("evaluation", 40, 22.0, {"loss": float("nan")})]
    assert last_loss(facts(make_run(events=events))) == 4.25
    assert last_loss(facts(make_run("b"))) == pytest.approx(8 / 40**0.2)
    assert last_loss(facts(make_run("c", kind="simulated"))) is None


def test_the_time_is_samples_and_the_rest(make_run) -> None:
    found = facts(make_run(events=[("start", 0, 5.0, {})]))
    assert time_formula(found) == "640 samples x 31.25 ms + 5 s"
    *rows, total = time_rows(found)
    assert all(len(row) == len(TIME_COLUMNS) for row in rows) and total == ("total", "25 s", "100.00 %", "")
    assert sum(float(row[2].removesuffix(" %")) for row in rows) == pytest.approx(100, abs=0.02)


def test_steps_beside_their_prediction(make_run, workstation: Plan) -> None:
    times = [workstation.step_s * 1.1] * 40
    rows = {name: (value, remark) for name, value, remark in step_rows(facts(make_run(plan=workstation, times_s=times)))}
    inside = "inside" if workstation.high_s >= 1.1 * workstation.step_s else "outside"
    assert rows["predicted step"][1] == f"the measured median is +10.0 % off, {inside} the 80 % interval"
    assert rows["steady steps"] == ("39", "of 40; not those after a start, evaluation or checkpoint")
    alone = {name for name, _, _ in step_rows(facts(make_run("b")))}
    assert "predicted step" not in alone and "noise floor" in alone


def test_too_few_steps_have_no_noise_floor(make_run) -> None:
    rows = {name: (value, remark) for name, value, remark in step_rows(facts(make_run(times_s=[0.5] * 3)))}
    assert rows["noise floor"] == ("unknown", "too few steady steps") and "correlation" not in rows
    assert rows["median step"][1] == "too few steps for an interval"


def test_amounts_say_where_they_come_from_and_what_is_unknown(make_run, record: Plan) -> None:
    known = {name: (value, remark) for name, value, remark in amount_rows(facts(make_run(plan=record)).ledger)}
    assert known["energy at the wall"][1] == "modelled, switches left out" and "PUE" in known["energy of the site"][1]
    unknown = facts(make_run("b")).ledger
    rows = {name: (value, remark) for name, value, remark in amount_rows(unknown)}
    assert {value for value, _ in rows.values()} == {"unknown"} and rows["energy at the wall"][1] == "no power is stated"
    assert (money(unknown), price(unknown)) == ("unknown", "no price is listed")


def test_repeated_steps_are_said_with_their_price(make_run, record: Plan) -> None:
    ledger = facts(make_run(plan=record)).ledger
    lost = replace(ledger, entries=tuple(replace(entry, is_lost=True, usd=Decimal(5)) for entry in ledger.entries[:1]))
    assert amount_rows(lost)[0][2].endswith("; $5.00 of it for repeated steps")
    assert "repeated" not in amount_rows(ledger)[0][2]


def test_parts_name_who_gives_them_a_time() -> None:
    rows = [
        PartTimes(part="compute", predicted_s=1.0, simulated_s=None, measured_s=0.5),
        PartTimes(part="bubble", predicted_s=None, simulated_s=None, measured_s=0.0),
    ]
    assert sources_of(rows) == [("predicted", "predicted_s"), ("measured", "measured_s")] and sources_of([]) == []
    assert part_cells(rows[0], sources_of(rows)) == ("1 s", "500 ms") and part_cells(rows[1], sources_of(rows)) == ("-", "0 s")


def test_a_size_of_a_series() -> None:
    base = Point(labels=("a",), num_ranks=1024, batch=2048, step_s=2.0, low_s=1.9, high_s=2.1, efficiency=1.0, low=1.0, high=1.0, text="")
    assert scaling_row(base) == ("1,024", "2,048", "2 s", "\u00b1 100 ms", "100.00 %", "base")
    other = replace(base, efficiency=0.9, low=0.85, high=0.95)
    assert scaling_row(other)[-2:] == ("90.00 %", "85.00 to 95.00 %") and len(scaling_row(other)) == len(SCALING_COLUMNS)
    assert scaling_row(replace(other, low=None, low_s=None))[3::2] == ("unknown", "unknown")


def test_shares_and_what_is_not_known() -> None:
    assert (percent(12.375), percent(12.375, 0), or_unknown(None, str), or_unknown(0.0, str)) == ("12.38 %", "12 %", "unknown", "0.0")
