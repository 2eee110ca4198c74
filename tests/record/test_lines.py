"""A line is strict JSON, whatever numbers it holds, and reads back."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter

from .conftest import a_step


def test_a_loss_that_is_no_number_survives_as_strict_json(writer: RunWriter) -> None:
    writer.step(a_step(1, loss=math.nan, grad_norm=math.inf))
    writer.event("nan", 1, loss=-math.inf, layers=[np.int64(3)], where={"rank": np.float64("nan")})
    for name in ("steps.jsonl", "events.jsonl"):
        json.loads((writer.folder / name).read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    run = read_run(writer.folder)
    assert math.isnan(run.records[0].loss or 0.0)
    assert run.records[0].grad_norm == math.inf
    assert run.events[0].detail == {"loss": "-Infinity", "layers": [3], "where": {"rank": "NaN"}}
