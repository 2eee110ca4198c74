"""A ledger as CSV for a spreadsheet, and as plain values for JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from meshwright.ledger.book import Entry, Ledger

COLUMNS = (
    "run", "start_s", "end_s", "what", "first_step", "last_step", "state", "done_again", "gpu_seconds", "usd_per_gpu_hour", "usd", "joules",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # a cell that begins so is run by spreadsheets


def ledger_csv(ledger: Ledger) -> str:
    """The ledger with a row for each entry and one for the total; rows end as RFC 4180 has it."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    table.writerows(_row(ledger, entry) for entry in ledger.entries)
    gpu_seconds = sum(ledger.gpu_seconds.values())
    table.writerow(
        _cells(
            (
                ledger.name,
                0,
                _round(ledger.wall_s),
                "total",
                "",
                "",
                "",
                "",
                _round(gpu_seconds),
                "",
                _text(ledger.usd),
                _round(ledger.energy_j),
            )
        )
    )
    return out.getvalue()


def ledger_json(ledger: Ledger) -> dict[str, Any]:
    """The ledger as plain values; money as text, so that no cent is lost."""
    energy = ledger.energy
    return {
        "name": ledger.name,
        "kind": ledger.kind,
        "status": ledger.status,
        "num_gpus": ledger.num_gpus,
        "wall_s": ledger.wall_s,
        "gpu_seconds": dict(ledger.gpu_seconds),
        "usd": _text(ledger.usd),
        "usd_unrounded": _text(ledger.usd_unrounded),
        "usd_by_state": {state: str(usd) for state, usd in ledger.usd_by_state.items()} if ledger.usd_by_state else None,
        "price": ledger.price.to_json() if ledger.price else None,
        "lost_gpu_seconds": ledger.lost_gpu_seconds,
        "lost_usd": _text(ledger.lost_usd),
        "energy_j": ledger.energy_j,
        "energy_source": ledger.energy_source,
        "metered_j": energy.metered_j,
        "facility_energy_j": energy.facility_j,
        "carbon_kg": ledger.carbon_kg,
        "water_l": ledger.water_l,
        "region": energy.region,
        "region_year": energy.region_year,
        "carbon_method": energy.method,
        "facility": energy.facility,
        "facility_year": energy.facility_year,
        "pue": energy.pue,
        "wue_l_per_kwh": energy.wue_l_per_kwh,
        "entries": [_entry_json(entry) for entry in ledger.entries],
        "notes": list(ledger.notes),
    }


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "start_s": entry.start_s,
        "end_s": entry.end_s,
        "what": entry.what,
        "first_step": entry.first_step,
        "last_step": entry.last_step,
        "state": entry.state,
        "done_again": entry.is_lost,
        "gpu_seconds": entry.gpu_seconds,
        "usd_per_gpu_hour": _text(entry.usd_per_gpu_hour),
        "usd": _text(entry.usd),
        "joules": entry.joules,
    }


def _row(ledger: Ledger, entry: Entry) -> list[str]:
    values = _entry_json(entry)
    values |= {name: _round(values[name]) for name in ("start_s", "end_s", "gpu_seconds", "joules")}
    return _cells((ledger.name, *(values[name] for name in COLUMNS[1:])))


def _cells(values: Iterable[object]) -> list[str]:
    """Cells that no spreadsheet takes for a formula: a text that begins like one has an apostrophe in front."""
    return [
        f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else "" if value is None else str(value) for value in values
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _text(value: object) -> str | None:
    return None if value is None else str(value)
