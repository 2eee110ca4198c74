"""A budget in the header holds to the events it was recorded with, and notices when they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.record.header import read_header
from meshwright.record.money import money_problem
from meshwright.record.writer import RunWriter


def edit(path: Path, change: Callable[[str], str]) -> None:
    path.write_text(change(path.read_text()))


@pytest.fixture
def folder(writer: RunWriter) -> Path:
    writer.event("start", 0, time_s=0.0, budget_usd="10")
    writer.keep_money(("10", "2.5"))
    writer.event("checkpoint", 4, time_s=5.0)  # what comes later is none of its business
    return writer.folder


def problem(folder: Path) -> str:
    return money_problem(folder, read_header(folder))


def test_nothing_is_wrong_with_a_run_that_nobody_touched(folder: Path) -> None:
    assert problem(folder) == ""


def test_a_run_without_a_budget_has_nothing_to_keep(writer: RunWriter) -> None:
    assert problem(writer.folder) == ""


def test_events_that_are_gone_cut_or_edited_are_noticed(folder: Path) -> None:
    events = folder / "events.jsonl"
    whole = events.read_text()
    for change in (lambda text: text.replace('"10"', '"10000"'), lambda text: text[30:], lambda text: "", lambda text: "x" + text):
        events.write_text(change(whole))
        assert problem(folder) == "events.jsonl is not as the run wrote it"
    events.unlink()
    assert problem(folder).startswith("events.jsonl cannot be read")


@pytest.mark.parametrize(
    "name, value", [("budget_usd", "1000"), ("spent_usd", "0"), ("events_bytes", 0), ("seal", "0"), ("events_sha256", None)]
)
def test_a_header_that_was_edited_is_noticed(folder: Path, name: str, value: object) -> None:
    header = json.loads((folder / "run.json").read_text())
    header["money"][name] = value
    (folder / "run.json").write_text(json.dumps(header))
    assert problem(folder) == "the budget in run.json is not as the run wrote it"
