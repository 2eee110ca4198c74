"""A step and an event that cannot be are refused; a line is flat, and in the words of a prediction."""

from __future__ import annotations

import json
import math
import re
from importlib.resources import files

import pytest

from meshwright.errors import InputError
from meshwright.predict import step
from meshwright.record.entries import PART_NAMES, PARTS, Event, StepRecord
from meshwright.record.writer import RunWriter

from .conftest import a_step


def test_the_parts_are_those_of_a_prediction() -> None:
    assert PARTS == step.PARTS


def test_a_line_is_flat_and_in_the_words_of_a_prediction(writer: RunWriter) -> None:
    writer.step(a_step(2, 0.5))
    line = json.loads((writer.folder / "steps.jsonl").read_text())
    expected = {"step": 2, "samples": 64, "loss": 2.5, "grad_norm": 1.5, "step_s": 0.5}
    assert line == {**expected, "compute_s": 0.375, "exposed_tp_s": 0.0625, "overhead_s": 0.0625, "tokens_per_s": 4e4}


def test_a_line_of_version_0_1_is_read_under_todays_names(writer: RunWriter) -> None:
    entry = a_step(2, 0.5).to_json()
    entry["step_time_s"] = entry.pop("step_s")
    assert StepRecord.from_json(entry) == a_step(2, 0.5)


@pytest.mark.parametrize(
    "changes",
    [{"step": -1}, {"step_s": math.nan}, {"parts_s": {"comms": 1.0}}, {"parts_s": {"data": -1.0}}, {"extra": {"data_s": 1.0}}],
)
def test_a_step_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        a_step(1, **changes)


def test_an_event_of_version_0_1_is_read_under_todays_names() -> None:
    event = Event.from_json({"time_s": 1.0, "kind": "stopped", "step": 3, "said": "asked to stop by a signal"})
    assert event.detail == {"message": "asked to stop by a signal"}


def test_every_part_has_one_name_for_people() -> None:
    assert list(PART_NAMES) == list(PARTS)
    assert PART_NAMES["exposed_tp"] == "exposed tp" and PART_NAMES["overhead"] == "overhead"
    assert len(set(PART_NAMES.values())) == len(PARTS)


def test_the_live_page_has_the_same_parts_under_the_same_names() -> None:
    script = (files("meshwright.serve") / "static" / "words.js").read_text(encoding="utf-8")
    listed = re.search(r"export const partNames = \[(.*?)\];", script, re.DOTALL)
    assert listed and tuple(re.findall(r'"(\w+)"', listed[1])) == PARTS
    assert 'partWord = (part) => part.replaceAll("_", " ");' in script
    assert {part: part.replace("_", " ") for part in PARTS} == PART_NAMES
