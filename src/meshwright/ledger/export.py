"""A ledger as CSV for a spreadsheet, and as plain values for JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from meshwright.ledger.book import Entry, Ledger
from meshwright.ledger.rate import Rate
from meshwright.units import HOUR, KWH

COLUMNS = (
    "run", "start_s", "end_s", "what", "first_step", "last_step", "state", "done_again", "gpu_seconds", "usd_per_gpu_hour", "usd", "joules",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # a cell that begins so is run by spreadsheets


def ledger_csv(ledger: Ledger) -> str:
    """The ledger with a row for each entry and one for the total; line ends follow RFC 4180."""
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
    """The ledger as `meshwright ledger --json` prints it: its values and every entry."""
    return {**ledger_values(ledger), "entries": [_entry_values(entry) for entry in ledger.entries]}


def ledger_values(ledger: Ledger) -> dict[str, Any]:
    """The ledger without its entries, under the names of the JSON vocabulary."""
    energy = ledger.energy
    return {
        "name": ledger.name,
        "kind": ledger.kind,
        "status": ledger.status,
        "num_accelerators": ledger.num_gpus,
        "run_s": ledger.wall_s,
        "accelerator_hours": sum(ledger.gpu_seconds.values()) / HOUR,
        "accelerator_hours_by_state": {state: seconds / HOUR for state, seconds in ledger.gpu_seconds.items()},
        "cost_usd": _number(ledger.usd_unrounded),
        "rounded_usd": _number(ledger.usd),
        "rounded_usd_by_state": {state: float(usd) for state, usd in ledger.usd_by_state.items()} if ledger.usd_by_state else None,
        "price": _price_values(ledger.price) if ledger.price else None,
        "lost_accelerator_hours": ledger.lost_gpu_seconds / HOUR,
        "lost_usd": _number(ledger.lost_usd),
        "energy_kwh": _kwh(ledger.energy_j),
        "energy_source": ledger.energy_source,
        "metered_kwh": _kwh(energy.metered_j),
        "facility_kwh": _kwh(energy.facility_j),
        "carbon_kg": ledger.carbon_kg,
        "water_l": ledger.water_l,
        "region": energy.region,
        "region_year": energy.region_year,
        "carbon_method": energy.method,
        "facility": energy.facility,
        "facility_year": energy.facility_year,
        "pue": energy.pue,
        "wue_l_per_kwh": energy.wue_l_per_kwh,
        "notes": list(ledger.notes),
    }


def _price_values(rate: Rate) -> dict[str, Any]:
    return {
        "provider": rate.provider,
        "kind": rate.kind,
        "usd_per_accelerator_hour": float(rate.usd_per_gpu_hour),
        "date": rate.date,
        "source": rate.source,
    }


def _entry_values(entry: Entry) -> dict[str, Any]:
    price = {} if entry.usd_per_gpu_hour is None else {"usd_per_accelerator_hour": float(entry.usd_per_gpu_hour)}
    return {
        "start_s": entry.start_s,
        "end_s": entry.end_s,
        "what": entry.what,
        "first_step": entry.first_step,
        "last_step": entry.last_step,
        "state": entry.state,
        "is_done_again": entry.is_lost,
        "accelerator_hours": entry.gpu_seconds / HOUR,
        **price,
        "rounded_usd": _number(entry.usd),
        "energy_kwh": _kwh(entry.joules),
    }


def _row(ledger: Ledger, entry: Entry) -> list[str]:
    return _cells(
        (
            ledger.name,
            _round(entry.start_s),
            _round(entry.end_s),
            entry.what,
            entry.first_step,
            entry.last_step,
            entry.state,
            entry.is_lost,
            _round(entry.gpu_seconds),
            _text(entry.usd_per_gpu_hour),
            _text(entry.usd),
            _round(entry.joules),
        )
    )


def _cells(values: Iterable[object]) -> list[str]:
    """Cells that no spreadsheet reads as a formula: a text that begins like one gets an apostrophe in front."""
    return [
        f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else "" if value is None else str(value) for value in values
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _number(value: Decimal | None) -> float | None:
    return None if value is None else float(value)


def _kwh(joules: float | None) -> float | None:
    return None if joules is None else joules / KWH
