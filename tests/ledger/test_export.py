"""A ledger as CSV and as JSON: rows add up, and no spreadsheet runs a cell."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from meshwright.ledger import STATES, Ledger, ledger_csv, ledger_json, ledger_of, ledger_values

from .conftest import new, start, step


@pytest.fixture
def ledger(lived: Path) -> Ledger:
    return ledger_of(lived)


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


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\uff1d1"])
def test_a_name_that_a_spreadsheet_would_run_has_an_apostrophe(ledger: Ledger, name: str) -> None:
    rows = list(csv.DictReader(io.StringIO(ledger_csv(replace(ledger, name=name)))))
    assert {row["run"] for row in rows} == {f"'{name}"}


def test_numbers_are_no_formulas_and_commas_and_quotes_come_back(ledger: Ledger) -> None:
    early = replace(ledger, name='a, "b"', entries=(replace(ledger.entries[0], start_s=-1.5),), usd_unrounded=None)
    text = ledger_csv(early)
    row, total = csv.DictReader(io.StringIO(text))
    assert row["start_s"] == "-1.5" and row["run"] == total["run"] == 'a, "b"' and total["usd"] == ""
    assert text.count("\r\n") == 3  # as RFC 4180 ends its rows


def test_the_csv_of_a_run_worked_by_hand(ledger: Ledger) -> None:
    first, *_, total = csv.DictReader(io.StringIO(ledger_csv(ledger)))
    assert first == {
        "run": "a", "start_s": "0.0", "end_s": "2.0", "what": "start", "first_step": "", "last_step": "", "state": "idle",
        "done_again": "False", "gpu_seconds": "8.0", "usd_per_gpu_hour": "3600", "usd": "8.00", "joules": "",
    }  # fmt: skip
    assert (total["what"], total["end_s"], total["gpu_seconds"], total["usd"]) == ("total", "40.0", "160.0", "160.00")


def test_the_json_of_a_run_worked_by_hand(ledger: Ledger) -> None:
    values = ledger_values(ledger)
    assert (values["num_accelerators"], values["run_s"], values["cost_usd"], values["rounded_usd"]) == (4, 40.0, 160.0, 160.0)
    assert values["accelerator_hours"] == pytest.approx(160 / 3600) == pytest.approx(sum(values["accelerator_hours_by_state"].values()))
    assert sum(values["rounded_usd_by_state"].values()) == pytest.approx(160.0)
    assert values["price"] == {
        "provider": "us", "kind": "given", "usd_per_accelerator_hour": 3600.0, "date": "2026-11-15", "source": "a test",
    }  # fmt: skip
    assert "entries" not in values and ledger_json(ledger)["entries"][0] == {
        "start_s": 0.0, "end_s": 2.0, "what": "start", "first_step": None, "last_step": None, "state": "idle", "is_done_again": False,
        "accelerator_hours": pytest.approx(8 / 3600), "usd_per_accelerator_hour": 3600.0, "rounded_usd": 8.0, "energy_kwh": None,
    }  # fmt: skip


def test_what_is_not_known_is_null_and_a_price_nobody_gave_is_left_out(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        writer.event("start", 0, 0.0)
        writer.step(step(1))
    values = json.loads(json.dumps(ledger_json(ledger_of(tmp_path / "a")), allow_nan=False))
    unknown = ("cost_usd", "rounded_usd", "rounded_usd_by_state", "price", "lost_usd", "energy_kwh", "metered_kwh", "carbon_kg", "water_l")
    assert [values[name] for name in unknown] == [None] * len(unknown)
    assert all("usd_per_accelerator_hour" not in entry and entry["rounded_usd"] is None for entry in values["entries"])


def test_joules_are_given_as_kilowatt_hours(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, 0.0)
        writer.step(step(1, energy_j=7.2e6))
    values = ledger_json(ledger_of(tmp_path / "a"))
    assert values["metered_kwh"] == values["energy_kwh"] == pytest.approx(2.0)
    assert sum(entry["energy_kwh"] for entry in values["entries"]) == pytest.approx(2.0)
