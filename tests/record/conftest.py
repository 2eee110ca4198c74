"""A run that is being written, and a step for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

HEADER = RunHeader(name="first", kind="trained", seed=7, num_ranks=8, machine="2 cores", sequence_length=128, target=3.3)
PLAN = b'{"model": "small"}\n'


def a_step(number: int, seconds: float = 0.1, **changes: object) -> StepRecord:
    parts_s = {"compute": 0.75 * seconds, "exposed_tp": 0.125 * seconds, "overhead": 0.125 * seconds}
    made = StepRecord(
        step=number,
        samples=32 * number,
        loss=5.0 / number,
        grad_norm=1.5,
        step_s=seconds,
        parts_s=parts_s,
        extra={"tokens_per_s": 4e4},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter.create(tmp_path / "runs", HEADER, PLAN) as writer:
        yield writer
