"""Writes a run folder: creates it, continues it after a step, and ends it. Each line is written completely and at once."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Self

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import check_path, refusal, replace_file
from meshwright.record.entries import Event, StepRecord
from meshwright.record.flight import remove_traces
from meshwright.record.header import RUNNING, STATUSES, RunHeader, read_header
from meshwright.record.lines import line_of, object_in
from meshwright.record.lock import LOCK, RunLock
from meshwright.record.money import sealed_money
from meshwright.record.run import ASIDE, aside_step
from meshwright.record.stored import OWN

BULK_LINES = 4096
# What a run writes before its first step.
FIRST_FILES = (ASIDE, OWN, "plan.json", "steps.jsonl", "events.jsonl", "mlperf.log", "tokenizer.json", "tokenizer_config.json", "run.json")


class RunWriter:
    """A run folder that is being written. One process writes steps; others may add events with `append_event`."""

    def __init__(self, folder: Path, header: RunHeader) -> None:
        self.folder, self.header = folder, header
        self._steps = _LineFile(folder / "steps.jsonl")
        self._events = _LineFile(folder / "events.jsonl")
        self._aside: int | None = None
        self._aside_bytes = 0
        self._clock_offset_s = _since_s(header) - time.monotonic()
        self.newest_step = 0  # that this object has written; 0: none yet

    @classmethod
    def create(cls, runs: str | Path, header: RunHeader, plan: bytes | None = None) -> Self:
        """A writer for the new folder `runs`/NAME; `plan` is the content of the plan file."""
        folder = Path(runs) / header.name
        try:
            check_path(folder)
            folder.mkdir(parents=True, exist_ok=True)
            clear_unstarted(folder)
            if not is_free(folder):
                raise InputError("the run's folder exists and is not empty", where=str(folder), fix="use another name, or resume this run")
            if plan is not None:
                header = replace(header, plan_sha256=hashlib.sha256(plan).hexdigest())
                _write_whole(folder / "plan.json", plan)
            _write_header(folder, header)
            return cls(folder, header)
        except OSError as error:
            raise refusal("cannot make the run's folder", folder, error) from None

    @classmethod
    def resume(cls, folder: str | Path, after_step: int, plan: bytes | None = None) -> Self:
        """A writer that continues an existing folder after `after_step`; later steps are moved to abandoned.jsonl.

        If `plan` is not the plan of the folder, it replaces it, and the old one is kept as plan-until-step-N.json.
        """
        try:
            return cls._resumed(Path(folder), after_step, plan)
        except OSError as error:
            raise refusal("cannot continue the run's records", error.filename or folder, error) from None

    @classmethod
    def _resumed(cls, folder: Path, after_step: int, plan: bytes | None) -> Self:
        header = replace(read_header(folder), status=RUNNING)
        if plan is not None and hashlib.sha256(plan).hexdigest() != header.plan_sha256:
            if (folder / "plan.json").exists():
                os.replace(folder / "plan.json", folder / f"plan-until-step-{after_step}.json")
            _write_whole(folder / "plan.json", plan)
            header = replace(header, plan_sha256=hashlib.sha256(plan).hexdigest())
            _write_header(folder, header)  # at once: a plan whose digest is not in the header would count as the plan of another run
        for name in ("steps.jsonl", "events.jsonl"):
            (folder / name).touch()
        _take_in_aside(folder)
        _abandon(folder, "events.jsonl", Event.from_json, math.inf)  # events after the step did happen; an incomplete line did not
        writer = cls(folder, header)
        try:
            writer.truncate_after(after_step)
            _write_header(folder, header)
        except OSError:
            writer.close()
            raise
        return writer

    @property
    def time_s(self) -> float:
        """Seconds of wall clock since the run's first start."""
        return self._clock_offset_s + time.monotonic()

    def step(self, record: StepRecord) -> None:
        """Append one step."""
        self._steps.append(line_of(record.to_json()))
        self.newest_step = record.step

    def step_aside(self, record: StepRecord) -> None:
        """Store a step whose times are still incomplete. A reader finds it there if this process is killed before `step` is called."""
        line = line_of(record.to_json())
        if self._aside is None:
            self._aside = os.open(self.folder / ASIDE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self._aside_bytes = max(self._aside_bytes, len(line))
        with suppress(OSError):  # a full disk ends the run when its steps are written
            os.pwrite(self._aside, line[:-1].ljust(self._aside_bytes - 1) + b"\n", 0)

    def steps(self, records: Iterable[StepRecord]) -> None:
        """Append many steps, thousands of lines in one write, for simulated runs."""
        remaining = iter(records)
        while block := b"".join(line_of(record.to_json()) for record in islice(remaining, BULK_LINES)):
            self._steps.append(block)

    def event(self, kind: str, step: int, time_s: float | None = None, **detail: Any) -> Event:
        """Append an event, with the present time unless `time_s` is given, and return it."""
        event = Event(time_s=self.time_s if time_s is None else time_s, kind=kind, step=step, detail=detail)
        self._events.append(line_of(event.to_json()))
        return event

    def update(self, **changes: Any) -> None:
        """Replace fields of the header, in the file too."""
        self.header = replace(self.header, **changes)
        _write_header(self.folder, self.header)

    def keep_money(self, amounts: tuple[str, str] | None) -> None:
        """Update the budget and the money that is spent, in USD; None if the run no longer has a budget."""
        self.update(money=amounts and sealed_money(self.folder, self.header, *amounts))

    def sync(self) -> None:
        """Write everything to the disk: after a checkpoint, so that steps and weights agree after a power cut."""
        self._steps.sync()
        self._events.sync()

    def truncate_after(self, step: int) -> int:
        """Move the steps after `step` to abandoned.jsonl, and return how many. A resumed run writes them again."""
        self._steps.close()
        num_cut = _abandon(self.folder, "steps.jsonl", StepRecord.from_json, step)
        self._steps = _LineFile(self.folder / "steps.jsonl")
        return num_cut

    def finish(self, status: str) -> None:
        """Write how the run ended, write everything to the disk, and close the files."""
        if status == RUNNING:
            raise InputError("a run cannot finish as running", fix=f"use one of {', '.join(STATUSES[1:])}")
        self.sync()
        self.update(status=status)
        self.close()
        (self.folder / ASIDE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; the status is not changed."""
        self._steps.close()
        self._events.close()
        if self._aside is not None:
            os.close(self._aside)
            self._aside = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def is_free(folder: Path) -> bool:
    """Whether a new run can be started in `folder`: it contains nothing but the lock of this process."""
    return all(entry.name in (LOCK, OWN) for entry in folder.iterdir())


def is_unstarted(folder: Path) -> bool:
    """Whether `folder` holds a run that was refused or killed before it started: it has a header, but no steps and no events."""
    try:
        if read_header(folder).status != RUNNING:
            return False
    except InputError:
        return False
    checkpoints = folder / "checkpoints"
    lines = [folder / name for name in ("steps.jsonl", "events.jsonl")]
    return not any(path.exists() and path.stat().st_size for path in lines) and not (checkpoints.is_dir() and any(checkpoints.iterdir()))


def clear_unstarted(folder: Path) -> None:
    """Remove the files of a run that never started; files that do not belong to a run are kept."""
    if not is_unstarted(folder):
        return
    for name in FIRST_FILES:
        (folder / name).unlink(missing_ok=True)
    remove_traces(folder)
    with suppress(OSError):
        (folder / "checkpoints").rmdir()


def discard_unstarted(folder: Path) -> None:
    """Remove the folder of a run that was refused before it started, so that its name is free for the corrected command."""
    with suppress(OSError, InputError):
        with RunLock.take(folder):
            clear_unstarted(folder)
            if is_free(folder):
                (folder / LOCK).unlink()
        folder.rmdir()


def elapsed_s(folder: str | Path) -> float:
    """Seconds of wall clock since the first start of the run, for an event of a process that does not have the run's writer."""
    return _since_s(read_header(Path(folder)))


def _since_s(header: RunHeader) -> float:
    return time.time() - datetime.fromisoformat(header.created).timestamp()


def append_event(folder: str | Path, event: Event) -> None:
    """Append one event from a process that does not have the run's writer: the watchdog of another rank."""
    with closing(_LineFile(Path(folder) / "events.jsonl")) as events:
        events.append(line_of(event.to_json()))
        events.sync()


def set_status(folder: str | Path, status: str) -> None:
    """Write how a run ended, from a process that does not have its writer, because the writer has died."""
    folder = Path(folder)
    _write_header(folder, replace(read_header(folder), status=status))


class _LineFile:
    """A file that grows by complete lines, each written at once without a buffer, so that the kernel keeps it when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO = open(path, "ab", buffering=0)  # noqa: SIM115 - held open for the length of a run
        self._torn = False

    def append(self, line: bytes) -> None:
        """Write `line`, or raise an error. A line that a full disk left incomplete is ended before the next one."""
        data = b"\n" + line if self._torn else line
        try:
            while data:
                written = self._file.write(data)
                self._torn = written < len(data)
                data = data[written:]
        except OSError as error:
            raise MeshwrightError(f"cannot record the run: {error.strerror or error}", where=str(self.path), fix="free space") from None

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _write_whole(path: Path, content: bytes) -> None:
    """Write the file so that a kill leaves either the old or the new content."""
    replace_file(path, content, f".{path.name}.new")


def _write_header(folder: Path, header: RunHeader) -> None:
    _write_whole(folder / "run.json", (json.dumps(asdict(header), indent=2) + "\n").encode())


def _take_in_aside(folder: Path) -> None:
    """Append the step that a killed process had stored, if it is the next one."""
    run_lines = (folder / "steps.jsonl").read_bytes()
    aside = aside_step(folder)
    if aside is not None and aside.step == _last_step(run_lines) + 1:
        lead = b"" if run_lines.endswith(b"\n") or not run_lines else b"\n"  # after an incomplete line
        with open(folder / "steps.jsonl", "ab") as file:
            file.write(lead + line_of(aside.to_json()))
    (folder / ASIDE).unlink(missing_ok=True)


def _last_step(lines: bytes) -> int:
    for line in reversed(lines.split(b"\n")):
        with suppress(ValueError, InputError):
            return StepRecord.from_json(object_in(line)).step
    return 0


def _abandon(folder: Path, name: str, parse: Callable[[Mapping[str, Any]], StepRecord | Event], last_step: float) -> int:
    """Move the lines after `last_step`, and unreadable lines, to abandoned.jsonl, and return how many."""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for line in filter(bytes.strip, (folder / name).read_bytes().split(b"\n")):
        try:
            (kept if parse(object_in(line)).step <= last_step else cut).append(line + b"\n")
        except (ValueError, InputError):
            cut.append(line_of({"damaged": line.decode(errors="replace")}))
    if cut:
        with open(folder / "abandoned.jsonl", "ab") as file:
            file.writelines(cut)
            file.flush()
            os.fsync(file.fileno())
    _write_whole(folder / name, b"".join(kept))
    return len(cut)
