"""A ledger as CSV and as JSON: rows add up, and no spreadsheet runs a cell."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path

import pytest

from meshwright.ledger import STATES, ledger_csv, ledger_json, ledger_of

from .conftest import new, start, step


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
