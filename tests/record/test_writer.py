"""A folder is begun once, gone on with where it stopped, and survives a full disk; no step stands in it twice."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import replace_file
from meshwright.record import writer as writer_module
from meshwright.record.entries import Event
from meshwright.record.lock import RunLock, check_free
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter, append_event, discard_unstarted, elapsed_s

from .conftest import HEADER, PLAN, a_step


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


def test_a_run_that_never_started_is_in_nobodys_way(tmp_path: Path) -> None:
    RunWriter.create(tmp_path, HEADER, PLAN).close()  # and its process was killed
    (tmp_path / "first" / "checkpoints").mkdir()
    RunWriter.create(tmp_path, HEADER, PLAN).close()
    discard_unstarted(tmp_path / "first")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_the_runs_own_is_never_removed(tmp_path: Path) -> None:
    RunWriter.create(tmp_path, HEADER, PLAN).close()
    (tmp_path / "first" / "notes.txt").write_text("mine")
    discard_unstarted(tmp_path / "first")
    assert (tmp_path / "first" / "notes.txt").read_text() == "mine"
    with pytest.raises(InputError, match="exists and is not empty"):
        RunWriter.create(tmp_path, HEADER, PLAN)


@pytest.mark.parametrize("at", ["plan.json", "steps.jsonl", "run.json"])
def test_going_on_on_a_full_disk_is_one_message(at: str, writer: RunWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.step(a_step(1))

    def full(path: Path, data: bytes, draft_name: str = "") -> None:
        if path.name == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, data, draft_name)

    monkeypatch.setattr(writer_module, "replace_file", full)
    with pytest.raises(InputError, match="cannot continue the run's records: No space left on device") as error:
        RunWriter.resume(writer.folder, 1, b"another plan")
    assert "free space" in error.value.fix


def test_a_lock_is_one_processes_and_goes_with_it(tmp_path: Path) -> None:
    code = "import sys,time; from pathlib import Path; from meshwright.record.lock import RunLock; lock = RunLock.take(Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{code}; print(flush=True); time.sleep(600)", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(InputError, match=f"being written by process {other.pid} on"):
            RunLock.take(tmp_path)
        other.kill()
    check_free(tmp_path)
    with RunLock.take(tmp_path), pytest.raises(InputError, match="being written"):
        check_free(tmp_path)


def test_a_step_that_waits_for_its_times_survives_a_kill(writer: RunWriter) -> None:
    for number in (1, 2):
        writer.step_aside(a_step(number, parts_s={}))
        writer.step(a_step(number))
    writer.step_aside(a_step(3, parts_s={}, extra={}))
    assert [record.step for record in read_run(writer.folder).records] == [1, 2, 3]
    with RunWriter.resume(writer.folder, 3) as again:
        again.step(a_step(4))
    steps = [json.loads(line) for line in (writer.folder / "steps.jsonl").read_text().splitlines()]
    assert [(step["step"], "compute_s" in step) for step in steps] == [(1, True), (2, True), (3, False), (4, True)]


def test_a_step_aside_that_was_written_since_is_not_there_twice(writer: RunWriter) -> None:
    writer.step_aside(a_step(1))
    writer.step(a_step(1))
    with RunWriter.resume(writer.folder, 1) as again:
        assert [record.step for record in read_run(again.folder).records] == [1]
