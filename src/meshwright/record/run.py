"""Reads a run folder, also a damaged one and one that is still being written; lists run folders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.arguments import typed
from meshwright.errors import InputError
from meshwright.files import MOST_LINES_BYTES, read_bytes
from meshwright.frames import data_frame
from meshwright.record.entries import SLOW_AFTER, STEP_FIELDS, Event, StepRecord
from meshwright.record.header import RUNNING, RunHeader, read_header
from meshwright.record.lines import object_in, one_line
from meshwright.units import seconds

if TYPE_CHECKING:
    from pandas import DataFrame

T = TypeVar("T")
ASIDE = ".step-aside.json"  # the last step, while the times of all ranks for it are on their way


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """The content of a run folder: `run = read_run("runs/first")`. A notebook shows its report.

    Attributes:
        folder: The run folder.
        header: The content of `run.json`.
        records: The steps; `columns` has them as arrays, and `to_pandas()` as a DataFrame.
        events: The events, in order.
        damage: Each line that could not be read, with its file and number. An incomplete last line is not damage.
    """

    folder: Path
    header: RunHeader
    records: tuple[StepRecord, ...]
    events: tuple[Event, ...]
    damage: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the run has ended (finished, stopped or failed) and no line is damaged."""
        return self.header.status != RUNNING and not self.damage

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The fields of the steps as arrays, one value per step; NaN if a step does not have the field."""
        entries = [record.to_json() for record in self.records]
        names = dict.fromkeys((*STEP_FIELDS, *(name for entry in entries for name in entry)))
        return {name: _column(name, entries) for name in names}

    @property
    def is_steady(self) -> NDArray[np.bool_]:
        """For each step, whether it is steady: it follows another step with no start, evaluation, checkpoint or restart between them."""
        step = self.columns["step"]
        before = {event.step for event in self.events if event.kind in SLOW_AFTER}
        steady = ~np.isin(step - 1, list(before))
        steady[:1] = False
        return np.asarray(steady)

    def __str__(self) -> str:
        from meshwright.record.summary import summary_of

        status = f"{self.header.name}: {self.header.kind}, {self.header.status.replace('_', ' ')}"
        count = len(self.records)
        if not count:
            return f"{status}, no step yet"
        return f"{status}, {count:,} step{'' if count == 1 else 's'}, median {seconds(summary_of(self).median_step_s)}"

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {len(self.records):,} steps, {len(self.events):,} events, status={self.header.status!r})"

    def to_json(self) -> dict[str, Any]:
        """The object that `meshwright report RUN --json` prints; an InputError if the run has no step yet."""
        from meshwright.report.documents import run_document

        return run_document(self).to_json()

    def _repr_html_(self) -> str:
        from meshwright.report.documents import run_document
        from meshwright.say.document import Document
        from meshwright.say.html import fragment

        return fragment(run_document(self) if self.records else Document(kind="report", title=str(self)))

    def to_pandas(self) -> DataFrame:
        """The steps as a DataFrame, with the names of `columns`; an InputError if pandas is not installed."""
        return data_frame(self.columns)


def _column(name: str, entries: Iterable[Mapping[str, Any]]) -> NDArray[Any]:
    if name in ("step", "samples"):
        return np.array([entry[name] for entry in entries], dtype=np.int64)
    values = (entry.get(name) for entry in entries)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


@typed
def read_run(folder: str | Path) -> Run:
    """Read the run in `folder`, also while it is being written. Damaged lines are left out and listed in `damage`."""
    folder = Path(folder)
    header = read_header(folder)
    damage: list[str] = []
    records: list[StepRecord] = []
    for where, record in _entries(folder / "steps.jsonl", StepRecord.from_json, damage):
        if records and record.step <= records[-1].step:
            damage.append(f"{where}: step {record.step} follows step {records[-1].step}")
        else:
            records.append(record)
    aside = aside_step(folder) if records else None
    if aside is not None and aside.step == records[-1].step + 1:
        records.append(aside)
    events = [event for _, event in _entries(folder / "events.jsonl", Event.from_json, damage)]
    return Run(folder, header, tuple(records), tuple(events), tuple(damage))


def aside_step(folder: Path) -> StepRecord | None:
    """The last step of a process that was killed before the times of all ranks were written; None if there is none."""
    try:
        return StepRecord.from_json(object_in(read_bytes(folder / ASIDE)))
    except (OSError, ValueError, InputError):
        return None


def _entries(path: Path, parse: Callable[[Mapping[str, Any]], T], damage: list[str]) -> Iterator[tuple[str, T]]:
    """The place and the content of each line. Lines that cannot be read are added to `damage`; an incomplete last line is skipped."""
    try:
        lines = read_bytes(path, MOST_LINES_BYTES).split(b"\n")
    except OSError as error:
        damage.append(f"{path.name}: {error.strerror or error}")
        return
    for number, line in enumerate(lines, start=1):
        where = f"{path.name} line {number}"
        try:
            if line.strip():
                yield where, parse(object_in(line))
        except (ValueError, InputError) as error:
            if number < len(lines):
                damage.append(f"{where}: {one_line(error)}")


def list_runs(runs: str | Path) -> list[Path]:
    """The run folders in `runs`, damaged ones included, with the newest header file first."""
    try:
        folders = [path for path in Path(runs).iterdir() if (path / "run.json").is_file()]
    except OSError as error:
        raise InputError(
            f"cannot list the runs: {error.strerror or error}", where=str(runs), fix="give a folder that train or simulate wrote runs into"
        ) from None
    return sorted(folders, key=lambda path: (-(path / "run.json").stat().st_mtime, path.name))
