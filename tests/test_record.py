"""A run folder reads back as it was written, in any state a kill, a full disk or a flipped bit can leave it in."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import record, step
from meshwright.errors import InputError, MeshwrightError
from meshwright.record import Event, RunHeader, RunWriter, StepRecord, append_event, check_name, elapsed_s, list_runs, read_run, summary

HEADER = RunHeader(name="first", kind="trained", seed=7, num_ranks=8, machine="2 cores", sequence_length=128, target=3.3)
PLAN = b'{"model": "small"}\n'


def a_step(number: int, seconds: float = 0.1, **changes: object) -> StepRecord:
    parts_s = {"compute": 0.75 * seconds, "exposed_tp": 0.125 * seconds, "overhead": 0.125 * seconds}
    made = StepRecord(
        step=number,
        samples=32 * number,
        loss=5.0 / number,
        grad_norm=1.5,
        step_time_s=seconds,
        parts_s=parts_s,
        extra={"tokens_per_s": 4e4},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    with RunWriter.create(tmp_path / "runs", HEADER, PLAN) as writer:
        yield writer


def test_the_parts_are_those_of_a_prediction() -> None:
    assert record.PARTS == step.PARTS


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


def test_a_line_is_flat_and_in_the_words_of_a_prediction(writer: RunWriter) -> None:
    writer.step(a_step(2, 0.5))
    line = json.loads((writer.folder / "steps.jsonl").read_text())
    expected = {"step": 2, "samples": 64, "loss": 2.5, "grad_norm": 1.5, "step_time_s": 0.5}
    assert line == {**expected, "compute_s": 0.375, "exposed_tp_s": 0.0625, "overhead_s": 0.0625, "tokens_per_s": 4e4}


def test_columns_hold_nan_where_a_step_says_nothing(writer: RunWriter) -> None:
    writer.steps([a_step(1), a_step(2, loss=None, parts_s={"compute": 0.1})])
    columns = read_run(writer.folder).columns
    np.testing.assert_array_equal(columns["step"], [1, 2])
    np.testing.assert_array_equal(columns["loss"], [5.0, math.nan])
    np.testing.assert_array_equal(columns["exposed_tp_s"], [0.0125, math.nan])
    assert columns["samples"].dtype == np.int64


def test_a_loss_that_is_no_number_survives_as_strict_json(writer: RunWriter) -> None:
    writer.step(a_step(1, loss=math.nan, grad_norm=math.inf))
    writer.event("nan", 1, loss=-math.inf, layers=[np.int64(3)], where={"rank": np.float64("nan")})
    for name in ("steps.jsonl", "events.jsonl"):
        json.loads((writer.folder / name).read_text(), parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    run = read_run(writer.folder)
    assert math.isnan(run.records[0].loss or 0.0)
    assert run.records[0].grad_norm == math.inf
    assert run.events[0].detail == {"loss": "-Infinity", "layers": [3], "where": {"rank": "NaN"}}


@pytest.mark.parametrize("field", ["step_time_s", "compute_s"])
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
    assert len(run.damage) == 1 and "when nothing can have happened" in run.damage[0]


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
        (b"[1, 2]", "steps.jsonl line 2: it holds no JSON object"),
        (b"[" * 100_000, "steps.jsonl line 2: nested too deep"),
        (b'{"step": 2, "samples": 64}', "steps.jsonl line 2: step_time_s is missing"),
        (b'{"step": true, "samples": 64, "step_time_s": 1}', "steps.jsonl line 2: step is True"),
        (b'{"step": 2, "samples": 64, "step_time_s": -1}', "steps.jsonl line 2: step_time_s of step 2 is -1.0"),
        (b'{"step": 2, "samples": 64, "step_time_s": 1' + b"0" * 400 + b"}", "steps.jsonl line 2: step_time_s is too large"),
        (b'{"step": 2, "samples": 64, "step_time_s": 1, "loss": "<b>"}', "steps.jsonl line 2: loss is '<b>'"),
        (b'{"step": 1, "samples": 64, "step_time_s": 1}', "steps.jsonl line 2: step 1 follows step 1"),
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
    assert read_run(writer.folder).damage == ("steps.jsonl: No such file or directory", "events.jsonl line 1: kind is no text")


@given(st.binary(max_size=200))
def test_no_bytes_in_the_files_stop_the_reader(tmp_path_factory: pytest.TempPathFactory, junk: bytes) -> None:
    folder = tmp_path_factory.mktemp("run") / "first"
    with RunWriter.create(folder.parent, HEADER) as writer:
        writer.step(a_step(1))
    for name in ("steps.jsonl", "events.jsonl"):
        with open(folder / name, "ab") as file:
            file.write(junk + b"\n")
    assert read_run(folder).records[0] == a_step(1)


def test_resuming_never_repeats_a_step(writer: RunWriter) -> None:
    writer.steps([a_step(number) for number in range(1, 11)])
    writer.event("checkpoint", 6, time_s=1.0)
    writer.close()
    with open(writer.folder / "steps.jsonl", "ab") as file:
        file.write(b'{"step": 11, "sam')
    with open(writer.folder / "events.jsonl", "ab") as file:
        file.write(b'{"time')

    with RunWriter.resume(writer.folder, after_step=6) as resumed:
        resumed.event("resumed", 6)
        resumed.steps([a_step(number, 0.2) for number in range(7, 13)])

    run = read_run(writer.folder)
    assert [one.step for one in run.records] == list(range(1, 13))
    assert run.damage == ()
    assert [event.kind for event in run.events] == ["checkpoint", "resumed"]
    abandoned = [json.loads(line) for line in (writer.folder / "abandoned.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in abandoned] == [None, 7, 8, 9, 10, None]
    assert [line["damaged"] for line in abandoned if "damaged" in line] == ['{"time', '{"step": 11, "sam']


def test_a_resumed_run_counts_time_from_its_first_start(tmp_path: Path) -> None:
    header = replace(HEADER, created="2026-01-01T00:00:00+00:00")
    RunWriter.create(tmp_path, header).close()
    with RunWriter.resume(tmp_path / "first", after_step=0) as writer:
        assert writer.event("resumed", 0).time_s > 86_400
        assert elapsed_s(writer.folder) == pytest.approx(writer.time_s, abs=60)


def test_resuming_under_another_plan_keeps_the_first(writer: RunWriter) -> None:
    writer.close()
    RunWriter.resume(writer.folder, after_step=0, plan=PLAN).close()
    RunWriter.resume(writer.folder, after_step=40, plan=b"{}").close()
    assert (writer.folder / "plan.json").read_bytes() == b"{}"
    assert (writer.folder / "plan-until-step-40.json").read_bytes() == PLAN
    assert read_run(writer.folder).header.plan_sha256 != writer.header.plan_sha256


def test_a_stale_folder_is_refused_and_left_as_it_was(writer: RunWriter, tmp_path: Path) -> None:
    writer.step(a_step(1))
    with pytest.raises(InputError, match="exists and is not empty"):
        RunWriter.create(tmp_path / "runs", HEADER, PLAN)
    assert len(read_run(writer.folder).records) == 1


def test_a_folder_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot make the run's folder: "):
        RunWriter.create(tmp_path / "file", HEADER)


def test_a_full_disk_is_named_and_the_next_line_stands_alone(writer: RunWriter) -> None:
    class FullDisk:
        def __init__(self, file: object) -> None:
            self.file, self.room = file, 10

        def write(self, data: bytes) -> int:
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            written = self.file.write(data[: self.room])  # type: ignore[attr-defined]
            self.room -= written
            return int(written)

    lines, real = writer._steps, writer._steps._file
    lines._file = FullDisk(real)  # type: ignore[assignment]
    with pytest.raises(MeshwrightError, match="No space left on device"):
        writer.step(a_step(1))
    lines._file = real
    writer.step(a_step(2))
    run = read_run(writer.folder)
    assert [one.step for one in run.records] == [2]
    assert run.damage[0].startswith("steps.jsonl line 1: ")


def test_another_process_may_add_an_event(writer: RunWriter) -> None:
    writer.event("start", 0, time_s=0.0)
    append_event(writer.folder, Event(time_s=1.0, kind="stall", step=3, detail={"rank": 5}))
    writer.event("stopped", 3, time_s=2.0)
    assert [event.kind for event in read_run(writer.folder).events] == ["start", "stall", "stopped"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "/etc", "a\\b", ".hidden", "a\nb", "a\x00b", "a\x1b[2J", "a\u202eb", " a", "a ", "x" * 201]
)
def test_a_name_that_could_leave_the_runs_folder_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="the run name"):
        check_name(name)


@pytest.mark.parametrize("name", ["first", "tp2-pp2.dp2", "<script>alert(1)</script>".replace("/", ""), "läuft 3", "a..b"])
def test_a_name_may_be_anything_else(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "changes, complaint",
    [
        ({"format": record.FORMAT + 1}, "this meshwright reads up to"),
        ({"format": "1"}, "not a whole number"),
        ({"name": "../../etc"}, "the run's header is damaged: the run name"),
        ({"status": "well"}, "a run's status cannot be 'well'"),
        ({"seed": None}, "seed is missing"),
        ({"created": "yesterday"}, "Invalid isoformat"),
        ({"created": "2026-01-01"}, "no time zone"),
    ],
)
def test_a_header_that_cannot_be_used_is_an_error(writer: RunWriter, changes: dict[str, object], complaint: str) -> None:
    path = writer.folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match=complaint):
        read_run(writer.folder)


def test_a_folder_without_a_header_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder"):
        read_run(tmp_path)


def test_runs_are_listed_newest_first_and_other_folders_are_not(tmp_path: Path) -> None:
    for age, name in ((1, "old"), (2, "new")):
        RunWriter.create(tmp_path, replace(HEADER, name=name)).close()
        os.utime(tmp_path / name / "run.json", (age, age))
    (tmp_path / "notes").mkdir()
    assert [path.name for path in list_runs(tmp_path)] == ["new", "old"]


@pytest.mark.parametrize(
    "changes",
    [{"step": -1}, {"step_time_s": math.nan}, {"parts_s": {"comms": 1.0}}, {"parts_s": {"data": -1.0}}, {"extra": {"data_s": 1.0}}],
)
def test_a_step_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InputError):
        a_step(1, **changes)


def test_a_summary_leaves_out_first_steps_and_worked_numbers_come_out(writer: RunWriter) -> None:
    # steps 1 and 4 are slow for known reasons; the others are 0.10, 0.12, 0.10, 0.14 s
    seconds = [1.0, 0.10, 0.12, 0.9, 0.10, 0.14]
    writer.steps(a_step(number, value) for number, value in enumerate(seconds, start=1))
    writer.event("evaluation", 3)
    found = summary(read_run(writer.folder))
    assert (found.num_steps, found.num_steady_steps) == (6, 4)
    assert found.median_step_s == pytest.approx(0.11)
    assert found.robust_std_pct == pytest.approx(100 * 1.4826 * 0.01 / 0.11, rel=1e-4)
    assert found.worst_step_s == 1.0
    assert found.drift_pct == pytest.approx(40.0)
    assert found.mean_exposed_s == {"tp": pytest.approx(0.115 / 8)}
    assert found.mean_parts_s["compute"] == pytest.approx(0.75 * 0.115)
    assert found.unaccounted_s == pytest.approx(0.0, abs=1e-12)
    assert found.tokens_per_s == pytest.approx(5 * 32 * 128 / sum(seconds[1:]))


def test_a_run_without_a_step_has_no_summary(writer: RunWriter) -> None:
    with pytest.raises(InputError, match="no step yet"):
        summary(read_run(writer.folder))
