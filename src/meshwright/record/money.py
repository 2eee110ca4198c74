"""The budget of a run and the money that is spent, in its header, with digests of its events, so that a lost or edited file is noticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshwright.files import MOST_LINES_BYTES, read_bytes
from meshwright.record.header import RunHeader

EVENTS = "events.jsonl"
FIELDS = ("budget_usd", "spent_usd", "events_bytes", "events_sha256")


def sealed_money(folder: Path, header: RunHeader, budget_usd: str, spent_usd: str) -> dict[str, Any]:
    """The budget and the money that is spent so far, with digests of the events up to now and of these values."""
    events = read_bytes(folder / EVENTS, MOST_LINES_BYTES)
    money = {
        "budget_usd": budget_usd,
        "spent_usd": spent_usd,
        "events_bytes": len(events),
        "events_sha256": hashlib.sha256(events).hexdigest(),
    }
    return {**money, "seal": _seal(header, money)}


def money_problem(folder: Path, header: RunHeader) -> str:
    """What was changed since the budget was last recorded, in words; empty if nothing was, or if the run has no budget."""
    money = header.money
    if money is None:
        return ""
    if set(money) != {*FIELDS, "seal"} or money["seal"] != _seal(header, money):
        return "the budget in run.json is not as the run wrote it"
    try:
        events = read_bytes(folder / EVENTS, MOST_LINES_BYTES)
    except OSError as error:
        return f"{EVENTS} cannot be read: {error.strerror or error}"
    if hashlib.sha256(events[: money["events_bytes"]]).hexdigest() != money["events_sha256"]:
        return f"{EVENTS} is not as the run wrote it"
    return ""


def _seal(header: RunHeader, money: Mapping[str, Any]) -> str:
    values = [header.name, header.created, *(money.get(name) for name in FIELDS)]
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
