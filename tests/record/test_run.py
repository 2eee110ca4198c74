"""A run folder reads back as it was written, in any state a kill or a flipped bit can leave it in."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.record.entries import Event
from meshwright.record.run import list_runs, read_run
from meshwright.record.writer import RunWriter

from .conftest import HEADER, PLAN, a_step


def test_a_run_reads_back_as_written(writer: RunWriter) -> None:
    steps = [a_step(number) for number in range(1, 6)]
    for one in steps[:3]:
        writer.step(one)
    writer.steps(steps[3:])
    writer.event("evaluation", 3, time_s=12.5, loss=2.5, samples=1024)
    writer.finish("target_reached")

    run = read_run(writer.folder)

    assert list(run.records) == steps
    assert run.events == (Event(time_s=12.5, kind="evaluation", step=3, detail={"loss": 2.5, "samples": 1024}),)
    assert run.header == replace(writer.header, status="target_reached")
    assert (run.complete, run.damage) == (True, ())
    assert (writer.folder / "plan.json").read_bytes() == PLAN
    assert run.header.plan_sha256 == hashlib.sha256(PLAN).hexdigest()


def test_columns_hold_nan_where_a_step_says_nothing(writer: RunWriter) -> None:
    writer.steps([a_step(1), a_step(2, loss=None, parts_s={"compute": 0.1})])
    columns = read_run(writer.folder).columns
    np.testing.assert_array_equal(columns["step"], [1, 2])
    np.testing.assert_array_equal(columns["loss"], [5.0, math.nan])
    np.testing.assert_array_equal(columns["exposed_tp_s"], [0.0125, math.nan])
    assert columns["samples"].dtype == np.int64


@pytest.mark.parametrize("field", ["step_s", "compute_s"])
@pytest.mark.parametrize("seconds", [1e308, 1.1e11, "NaN", "Infinity", -1.0])
def test_a_step_that_takes_what_no_step_can_is_a_damaged_line(writer: RunWriter, field: str, seconds: object) -> None:
    writer.steps([a_step(1), a_step(2), a_step(3)])
    path = writer.folder / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(f"{json.dumps({**line, field: seconds} if line['step'] == 2 else line)}\n" for line in lines))
    run = read_run(writer.folder)
    assert [record.step for record in run.records] == [1, 3]
    assert len(run.damage) == 1 and run.damage[0].startswith("steps.jsonl line 2: ")


@pytest.mark.parametrize("time_s", [1e308, -1e308, "NaN"])
def test_an_event_at_a_time_that_cannot_be_is_a_damaged_line(writer: RunWriter, time_s: object) -> None:
    writer.event("start", 0, 1.0)
    with open(writer.folder / "events.jsonl", "a") as file:
        file.write(json.dumps({"time_s": time_s, "kind": "stall", "step": 1}) + "\n")
    run = read_run(writer.folder)
    assert [event.kind for event in run.events] == ["start"]
    assert len(run.damage) == 1 and "which is not a possible time" in run.damage[0]


def test_a_half_written_last_line_is_normal(writer: RunWriter) -> None:
    writer.steps([a_step(1), a_step(2)])
    path = writer.folder / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    run = read_run(writer.folder)
    assert [one.step for one in run.records] == [1]
    assert run.damage == ()
    assert not run.complete  # it is still running


@pytest.mark.parametrize(
    "line, complaint",
    [
        (b'{"step": 2, "samp', "steps.jsonl line 2: Unterminated string"),
        (b"\xff\xfe\x00", "steps.jsonl line 2: "),
        (b"[1, 2]", "steps.jsonl line 2: it is not a JSON object"),
        (b"[" * 100_000, "steps.jsonl line 2: nested too deep"),
        (b'{"step": 2, "samples": 64}', "steps.jsonl line 2: step_s is missing"),
        (b'{"step": true, "samples": 64, "step_s": 1}', "steps.jsonl line 2: step is True"),
        (b'{"step": 2, "samples": 64, "step_s": -1}', "steps.jsonl line 2: step_s of step 2 is -1.0"),
        (b'{"step": 2, "samples": 64, "step_s": 1' + b"0" * 400 + b"}", "steps.jsonl line 2: step_s is too large"),
        (b'{"step": 2, "samples": 64, "step_s": 1, "loss": "<b>"}', "steps.jsonl line 2: loss is '<b>'"),
        (b'{"step": 1, "samples": 64, "step_s": 1}', "steps.jsonl line 2: step 1 follows step 1"),
    ],
)
def test_a_damaged_middle_line_is_named(writer: RunWriter, line: bytes, complaint: str) -> None:
    writer.step(a_step(1))
    with open(writer.folder / "steps.jsonl", "ab") as file:
        file.write(line + b"\n")
    writer.step(a_step(3))
    run = read_run(writer.folder)
    assert [one.step for one in run.records] == [1, 3]
    assert len(run.damage) == 1
    assert run.damage[0].startswith(complaint)


def test_a_damaged_event_and_a_missing_file_are_named(writer: RunWriter) -> None:
    (writer.folder / "events.jsonl").write_text('{"time_s": 1, "step": 0}\n')
    (writer.folder / "steps.jsonl").unlink()
    assert read_run(writer.folder).damage == ("steps.jsonl: No such file or directory", "events.jsonl line 1: kind is not text")


@given(st.binary(max_size=200))
def test_no_bytes_in_the_files_stop_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("run") / "first"
    with RunWriter.create(folder.parent, HEADER) as writer:
        writer.step(a_step(1))
    for name in ("steps.jsonl", "events.jsonl"):
        with open(folder / name, "ab") as file:
            file.write(junk + b"\n")
    assert read_run(folder).records[0] == a_step(1)


def test_runs_are_listed_newest_first_and_other_folders_are_not(tmp_path: Path) -> None:
    for age, name in ((1, "old"), (2, "new")):
        RunWriter.create(tmp_path, replace(HEADER, name=name)).close()
        os.utime(tmp_path / name / "run.json", (age, age))
    (tmp_path / "notes").mkdir()
    assert [path.name for path in list_runs(tmp_path)] == ["new", "old"]
