"""A step and an event that cannot be are refused; a line is flat, and in the words of a prediction."""

from __future__ import annotations

import json
import math

import pytest

from meshwright import step
from meshwright.errors import InputError
from meshwright.record.entries import PARTS
from meshwright.record.writer import RunWriter

from .conftest import a_step


def test_the_parts_are_those_of_a_prediction() -> None:
    assert PARTS == step.PARTS


def test_a_line_is_flat_and_in_the_words_of_a_prediction(writer: RunWriter) -> None:
    writer.step(a_step(2, 0.5))
    line = json.loads((writer.folder / "steps.jsonl").read_text())
    expected = {"step": 2, "samples": 64, "loss": 2.5, "grad_norm": 1.5, "step_time_s": 0.5}
    assert line == {**expected, "compute_s": 0.375, "exposed_tp_s": 0.0625, "overhead_s": 0.0625, "tokens_per_s": 4e4}


@pytest.mark.parametrize(
    "changes",
    [{"step": -1}, {"step_time_s": math.nan}, {"parts_s": {"comms": 1.0}}, {"parts_s": {"data": -1.0}}, {"extra": {"data_s": 1.0}}],
)
def test_a_step_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        a_step(1, **changes)
