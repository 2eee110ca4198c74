"""A run as a folder: its header, its plan, one JSON line a step, one an event; the same for trained and simulated runs.

    runs/NAME/run.json  plan.json  steps.jsonl  events.jsonl  [abandoned.jsonl]  and what else a run leaves: logs, checkpoints

docs/records.md has every field. Lines are appended whole and reach the operating system at once, so a killed process loses
nothing and a reader sees whole lines, but for a last one that is being written.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from itertools import islice
from pathlib import Path
from platform import python_version
from statistics import NormalDist
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, MeshwrightError

FORMAT = 1  # of the folder; a reader refuses a newer one
PARTS = ("compute", "exposed_tp", "exposed_cp", "exposed_pp", "exposed_dp", "exposed_ep", "bubble", "optimizer", "data", "overhead")
KINDS = ("trained", "simulated")
RUNNING = "running"
STATUSES = (RUNNING, "finished", "target_reached", "stopped", "failed")
SLOW_AFTER = ("evaluation", "checkpoint", "resumed", "restart")  # events after which the next step is no steady one
MAD_TO_STD = 1 / NormalDist().inv_cdf(0.75)  # of a normal distribution
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no such numbers: written as text
BULK_LINES = 4096
LONGEST_S = 1e11  # three thousand years: no step takes longer, no event comes later, and a date can still be told

_STEP_FIELDS = ("step", "samples", "loss", "grad_norm", "step_time_s")
_PART_OF_FIELD = {f"{part}_s": part for part in PARTS}
_EVENT_FIELDS = ("time_s", "kind", "step")

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step. Parts are seconds by name in `PARTS`; a part that nobody measured is left out, not zero."""

    step: int  # from 1
    samples: int  # sequences trained on so far, this step's included
    loss: float | None
    grad_norm: float | None
    step_time_s: float
    parts_s: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)  # tokens_per_s, memory_bytes, energy_j, ...

    def __post_init__(self) -> None:
        if self.step < 0 or self.samples < 0:
            raise InputError(f"step {self.step} with {self.samples} samples: neither can be below 0")
        if unknown := self.parts_s.keys() - set(PARTS):
            raise InputError(f"no part of a step is called {sorted(unknown)[0]!r}", fix=f"use {', '.join(PARTS)}, or an extra field")
        if taken := [name for name in self.extra if name in _STEP_FIELDS or name in _PART_OF_FIELD]:
            raise InputError(f"the extra field {taken[0]!r} has the name of a field of every step", fix="call it something else")
        for name, seconds in (("step_time_s", self.step_time_s), *self.parts_s.items()):
            if not 0 <= seconds <= LONGEST_S:
                raise InputError(f"{name} of step {self.step} is {seconds}, not a number of seconds that it can take")

    def to_json(self) -> dict[str, Any]:
        """The record as one flat JSON object: `compute_s`, `exposed_tp_s`, ... beside the rest."""
        entry = {name: getattr(self, name) for name in _STEP_FIELDS}
        return {**entry, **{f"{part}_s": seconds for part, seconds in self.parts_s.items()}, **self.extra}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> StepRecord:
        """The record that a line holds; ValueError says what it lacks."""
        rest = {name: _number(entry, name) for name in entry if name not in _STEP_FIELDS}
        parts_s = {_PART_OF_FIELD[name]: value for name, value in rest.items() if name in _PART_OF_FIELD and value is not None}
        extra = {name: value for name, value in rest.items() if name not in _PART_OF_FIELD and value is not None}
        return StepRecord(
            step=_whole(entry, "step"),
            samples=_whole(entry, "samples"),
            loss=_number(entry, "loss"),
            grad_norm=_number(entry, "grad_norm"),
            step_time_s=_required(entry, "step_time_s"),
            parts_s=parts_s,
            extra=extra,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened: start, evaluation, checkpoint, slow_rank, stall, nan, resumed, stopped, fault, restart, ..."""

    time_s: float  # since the run's first start; simulated time in a simulated run
    kind: str
    step: int  # steps done when it happened
    detail: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if taken := [name for name in self.detail if name in _EVENT_FIELDS]:
            raise InputError(f"the detail {taken[0]!r} of an event has the name of a field of every event", fix="call it something else")

    def to_json(self) -> dict[str, Any]:
        """The event as one flat JSON object."""
        return {"time_s": self.time_s, "kind": self.kind, "step": self.step, **self.detail}

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Event:
        """The event that a line holds; ValueError says what it lacks."""
        if not isinstance(entry.get("kind"), str):
            raise ValueError("kind is no text")
        time_s = _required(entry, "time_s")
        if not abs(time_s) <= LONGEST_S:
            raise ValueError(f"time_s is {time_s}, when nothing can have happened")
        detail = {name: value for name, value in entry.items() if name not in _EVENT_FIELDS}
        return Event(time_s=time_s, kind=entry["kind"], step=_whole(entry, "step"), detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What run.json says: enough to know a year later what ran, where, and how it ended."""

    name: str
    kind: str
    seed: int
    num_ranks: int
    machine: str  # in words
    sequence_length: int | None = None  # tokens of a sample
    target: float | None = None  # evaluation loss at which the run is done
    status: str = RUNNING
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="milliseconds"))
    versions: Mapping[str, str | None] = field(default_factory=lambda: versions())
    plan_file: str | None = None  # as the user named it; the folder's copy is plan.json
    plan_sha256: str | None = None
    conditions: tuple[str, ...] = ()  # of a simulated machine, in words
    format: int = FORMAT

    def __post_init__(self) -> None:
        check_name(self.name)
        for what, value, known in (("kind", self.kind, KINDS), ("status", self.status, STATUSES)):
            if value not in known:
                raise InputError(f"a run's {what} cannot be {value!r}", fix=f"use one of {', '.join(known)}")
        if self.num_ranks < 1:
            raise InputError(f"a run of {self.num_ranks} ranks", fix="give at least one")


def versions() -> dict[str, str | None]:
    """Versions of what a run's numbers depend on; None for a package that is not installed."""
    found: dict[str, str | None] = {"python": python_version()}
    for package in ("meshwright", "numpy", "torch"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


def check_name(name: str) -> str:
    """`name`, if it can be one folder's name inside the runs folder and nothing else."""
    problem = ""
    if not name or name.strip() != name:
        problem = "is empty, or begins or ends with a space"
    elif name.startswith(".") or "/" in name or "\\" in name:
        problem = "could lead out of the runs folder, or hide in it"
    elif any(unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") for letter in name):
        problem = "holds a control character"
    elif len(name.encode()) > 200:
        problem = f"is {len(name.encode())} bytes long"
    if problem:
        raise InputError(f"the run name {name!r} {problem}", fix="use up to 200 letters, digits and signs, no slash, no dot in front")
    return name


class RunWriter:
    """A run folder that is being written. One process writes steps; others may add events with `append_event`."""

    def __init__(self, folder: Path, header: RunHeader) -> None:
        self.folder, self.header = folder, header
        self._steps = _LineFile(folder / "steps.jsonl")
        self._events = _LineFile(folder / "events.jsonl")
        self._clock_offset_s = _since_s(header) - time.monotonic()

    @classmethod
    def create(cls, runs: str | Path, header: RunHeader, plan: bytes | None = None) -> Self:
        """A writer for the new folder `runs`/NAME; `plan` is the content of the plan file as it is run."""
        folder = Path(runs) / header.name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise InputError("the run's folder exists and is not empty", where=str(folder), fix="use another name, or resume this run")
            if plan is not None:
                header = replace(header, plan_sha256=hashlib.sha256(plan).hexdigest())
                _write_whole(folder / "plan.json", plan)
            _write_header(folder, header)
            return cls(folder, header)
        except OSError as error:
            raise InputError(f"cannot make the run's folder: {error.strerror or error}", where=str(folder)) from None

    @classmethod
    def resume(cls, folder: str | Path, after_step: int, plan: bytes | None = None) -> Self:
        """A writer that goes on in an existing folder behind `after_step`: later steps move to abandoned.jsonl.

        A `plan` that is not the folder's takes its place; the old one stays as plan-until-step-N.json.
        """
        folder = Path(folder)
        header = replace(read_header(folder), status=RUNNING)
        if plan is not None and hashlib.sha256(plan).hexdigest() != header.plan_sha256:
            if (folder / "plan.json").exists():
                os.replace(folder / "plan.json", folder / f"plan-until-step-{after_step}.json")
            _write_whole(folder / "plan.json", plan)
            header = replace(header, plan_sha256=hashlib.sha256(plan).hexdigest())
            _write_header(folder, header)  # at once: a plan whose digest is not recorded would pass for somebody else's
        for name in ("steps.jsonl", "events.jsonl"):
            (folder / name).touch()
        _abandon(folder, "events.jsonl", Event.from_json, math.inf)  # events behind the step did happen; a torn line did not
        writer = cls(folder, header)
        writer.truncate_after(after_step)
        _write_header(folder, header)
        return writer

    @property
    def time_s(self) -> float:
        """Seconds of wall clock since the run's first start."""
        return self._clock_offset_s + time.monotonic()

    def step(self, record: StepRecord) -> None:
        """Append one step."""
        self._steps.append(_line(record.to_json()))

    def steps(self, records: Iterable[StepRecord]) -> None:
        """Append many steps, thousands of lines in a write: for runs that are not lived through."""
        remaining = iter(records)
        while block := b"".join(_line(record.to_json()) for record in islice(remaining, BULK_LINES)):
            self._steps.append(block)

    def event(self, kind: str, step: int, time_s: float | None = None, **detail: Any) -> Event:
        """Append an event, which happened now unless `time_s` says otherwise, and return it."""
        event = Event(time_s=self.time_s if time_s is None else time_s, kind=kind, step=step, detail=detail)
        self._events.append(_line(event.to_json()))
        return event

    def update(self, **changes: Any) -> None:
        """Replace fields of the header, in the file too."""
        self.header = replace(self.header, **changes)
        _write_header(self.folder, self.header)

    def sync(self) -> None:
        """Put what was written on the disk itself: after a checkpoint, so that steps and weights agree after a power cut."""
        self._steps.sync()
        self._events.sync()

    def truncate_after(self, step: int) -> int:
        """Move the steps behind `step` to abandoned.jsonl; return how many. A resumed run writes them anew."""
        self._steps.close()
        num_cut = _abandon(self.folder, "steps.jsonl", StepRecord.from_json, step)
        self._steps = _LineFile(self.folder / "steps.jsonl")
        return num_cut

    def finish(self, status: str) -> None:
        """Write how the run ended, put all on the disk and close."""
        if status == RUNNING:
            raise InputError("a run cannot finish as running", fix=f"use one of {', '.join(STATUSES[1:])}")
        self.sync()
        self.update(status=status)
        self.close()

    def close(self) -> None:
        """Close the files; the status stays as it is."""
        self._steps.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def elapsed_s(folder: str | Path) -> float:
    """Seconds of wall clock since the run's first start, for an event from a process that does not hold the run's writer."""
    return _since_s(read_header(Path(folder)))


def _since_s(header: RunHeader) -> float:
    return time.time() - datetime.fromisoformat(header.created).timestamp()


def append_event(folder: str | Path, event: Event) -> None:
    """Append one event from a process that does not hold the run's writer: the watchdog of another rank."""
    with closing(_LineFile(Path(folder) / "events.jsonl")) as events:
        events.append(_line(event.to_json()))
        events.sync()


class _LineFile:
    """A file that grows by whole lines, each one write without a buffer: the kernel keeps it when the process dies."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: io.FileIO = open(path, "ab", buffering=0)  # noqa: SIM115 - held open for the length of a run
        self._torn = False

    def append(self, line: bytes) -> None:
        """Write `line`, or raise; a line torn by a full disk is closed before the next one."""
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


def _line(entry: Mapping[str, Any]) -> bytes:
    try:
        text = json.dumps(entry, allow_nan=False)
    except (ValueError, TypeError):
        text = json.dumps(_finite(entry), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    """`value` with plain numbers for numpy's, and text for the numbers JSON cannot hold."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _write_whole(path: Path, content: bytes) -> None:
    """Write the file so that a kill leaves the old or the new one."""
    fresh = path.with_name(f".{path.name}.new")
    with open(fresh, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def _write_header(folder: Path, header: RunHeader) -> None:
    _write_whole(folder / "run.json", (json.dumps(asdict(header), indent=2) + "\n").encode())


def _abandon(folder: Path, name: str, parse: Callable[[Mapping[str, Any]], StepRecord | Event], last_step: float) -> int:
    """Move the lines behind `last_step`, and those that no one can read, to abandoned.jsonl; return how many."""
    kept: list[bytes] = []
    cut: list[bytes] = []
    for line in filter(bytes.strip, (folder / name).read_bytes().split(b"\n")):
        try:
            (kept if parse(object_in(line)).step <= last_step else cut).append(line + b"\n")
        except (ValueError, InputError):
            cut.append(_line({"damaged": line.decode(errors="replace")}))
    if cut:
        with open(folder / "abandoned.jsonl", "ab") as file:
            file.writelines(cut)
            file.flush()
            os.fsync(file.fileno())
    _write_whole(folder / name, b"".join(kept))
    return len(cut)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """A run's steps in a few numbers. Steady steps are those that follow another step, with nothing between them."""

    num_steps: int
    num_steady_steps: int
    median_step_s: float  # of the steady steps, as all down to drift_pct
    robust_std_pct: float  # of the median, by the median absolute deviation: stalls do not count
    p99_over_p50: float
    worst_step_s: float  # of all steps
    drift_pct: float  # last tenth against first tenth, medians
    mean_parts_s: Mapping[str, float]  # of the steady steps, by part; a part that no step names is absent
    mean_exposed_s: Mapping[str, float]  # by axis: tp, cp, pp, dp, ep
    unaccounted_s: float  # of the mean steady step, in no part
    tokens_per_s: float | None  # over the time of all steps; None where the header has no sequence length


@dataclass(frozen=True, eq=False)
class Run:
    """A run folder as it was read. `damage` names each line that could not be; a half-written last line is none."""

    folder: Path
    header: RunHeader
    records: tuple[StepRecord, ...]
    events: tuple[Event, ...]
    damage: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the run has ended, well or badly, and every line is whole."""
        return self.header.status != RUNNING and not self.damage

    @cached_property
    def columns(self) -> dict[str, NDArray[Any]]:
        """An array for every field of the steps; nan where a step does not have it."""
        entries = [record.to_json() for record in self.records]
        names = dict.fromkeys((*_STEP_FIELDS, *(name for entry in entries for name in entry)))
        return {name: _column(name, entries) for name in names}

    @property
    def is_steady(self) -> NDArray[np.bool_]:
        """Of each step, whether it follows another one with no start, evaluation, checkpoint or restart between."""
        step = self.columns["step"]
        before = {event.step for event in self.events if event.kind in SLOW_AFTER}
        steady = ~np.isin(step - 1, list(before))
        steady[:1] = False
        return np.asarray(steady)


def _column(name: str, entries: Iterable[Mapping[str, Any]]) -> NDArray[Any]:
    if name in ("step", "samples"):
        return np.array([entry[name] for entry in entries], dtype=np.int64)
    values = (entry.get(name) for entry in entries)
    return np.array([math.nan if value is None else value for value in values], dtype=np.float64)


def read_run(folder: str | Path) -> Run:
    """The run in `folder`, also while it is being written; damaged lines are left out and named."""
    folder = Path(folder)
    header = read_header(folder)
    damage: list[str] = []
    records: list[StepRecord] = []
    for where, record in _entries(folder / "steps.jsonl", StepRecord.from_json, damage):
        if records and record.step <= records[-1].step:
            damage.append(f"{where}: step {record.step} follows step {records[-1].step}")
        else:
            records.append(record)
    events = [event for _, event in _entries(folder / "events.jsonl", Event.from_json, damage)]
    return Run(folder, header, tuple(records), tuple(events), tuple(damage))


def list_runs(runs: str | Path) -> list[Path]:
    """The run folders in `runs`, newest first by their header's time stamp on disk; damaged ones too."""
    try:
        folders = [path for path in Path(runs).iterdir() if (path / "run.json").is_file()]
    except OSError as error:
        raise InputError(f"cannot list the runs: {error.strerror or error}", where=str(runs)) from None
    return sorted(folders, key=lambda path: (-(path / "run.json").stat().st_mtime, path.name))


def summary(run: Run) -> Summary:
    """The run's steps in a few numbers; an error where it has none."""
    if not run.records:
        raise InputError("the run has no step yet", where=str(run.folder))
    columns = run.columns
    all_s = columns["step_time_s"]
    steady = run.is_steady if run.is_steady.any() else np.ones(len(all_s), dtype=bool)
    step_s = all_s[steady]
    median_s = float(np.median(step_s))
    tenth = math.ceil(len(step_s) / 10)
    parts_s = {part: float(np.nanmean(columns[f"{part}_s"][steady])) for part in PARTS if _known(columns, f"{part}_s", steady)}
    return Summary(
        num_steps=len(all_s),
        num_steady_steps=len(step_s),
        median_step_s=median_s,
        robust_std_pct=_pct(MAD_TO_STD * float(np.median(np.abs(step_s - median_s))), median_s),
        p99_over_p50=float(np.percentile(step_s, 99)) / median_s if median_s else math.nan,
        worst_step_s=float(np.max(all_s)),
        drift_pct=_pct(float(np.median(step_s[-tenth:]) - np.median(step_s[:tenth])), float(np.median(step_s[:tenth]))),
        mean_parts_s=parts_s,
        mean_exposed_s={part.removeprefix("exposed_"): value for part, value in parts_s.items() if part.startswith("exposed_")},
        unaccounted_s=float(np.mean(step_s)) - sum(parts_s.values()),
        tokens_per_s=_tokens_per_s(run),
    )


def _known(columns: Mapping[str, NDArray[Any]], name: str, steady: NDArray[np.bool_]) -> bool:
    return name in columns and not bool(np.isnan(columns[name][steady]).all())


def _pct(value: float, of: float) -> float:
    return 100 * value / of if of else math.nan


def _tokens_per_s(run: Run) -> float | None:
    """Tokens over seconds of the steps after the first record, whose samples may be those of an earlier life."""
    if run.header.sequence_length is None or len(run.records) < 2:
        return None
    seconds = float(np.sum(run.columns["step_time_s"][1:]))
    samples = run.records[-1].samples - run.records[0].samples
    return samples * run.header.sequence_length / seconds if seconds else None


def read_header(folder: Path) -> RunHeader:
    path = folder / "run.json"
    try:
        entry = object_in(path.read_bytes())
    except FileNotFoundError:
        raise InputError(
            "not a run folder: it has no run.json", where=str(folder), fix="give a folder that train or simulate wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the run's header: {one_line(error)}", where=str(path)) from None
    version = entry.get("format")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(f"the run's format is {version!r}, not a whole number", where=str(path))
    if version > FORMAT:
        raise InputError(f"the run's format is {version}; this meshwright reads up to {FORMAT}", where=str(path), fix="update meshwright")
    return _header(entry, path)


def _header(entry: Mapping[str, Any], path: Path) -> RunHeader:
    """The header a JSON object holds, each field of its type; an unknown field is one of the same format's that we do not need."""
    known = {name: entry[name] for name in (spec.name for spec in fields(RunHeader)) if name in entry}
    try:
        for name in ("seed", "num_ranks"):
            _whole(known, name)
        for name in ("sequence_length", "target"):
            _number(known, name)
        for name in ("name", "kind", "machine", "status", "created"):
            if not isinstance(known.get(name), str):
                raise ValueError(f"{name} is {known.get(name, 'missing')!r}")
        conditions = known.get("conditions", [])
        if not isinstance(conditions, list) or not all(isinstance(word, str) for word in conditions):
            raise ValueError("conditions are not a list of texts")
        known["conditions"] = tuple(conditions)
        if not all(word.isprintable() for word in (known["machine"], *conditions)):
            raise ValueError("machine or conditions hold characters that cannot be shown")
        if not isinstance(known.get("versions"), dict):
            raise ValueError("versions are missing")
        if datetime.fromisoformat(known["created"]).tzinfo is None:
            raise ValueError("created has no time zone")
        return RunHeader(**known)
    except (ValueError, InputError) as error:
        raise InputError(f"the run's header is damaged: {one_line(error)}", where=str(path)) from None


def _entries(path: Path, parse: Callable[[Mapping[str, Any]], T], damage: list[str]) -> Iterator[tuple[str, T]]:
    """Each line's place and what it holds; what cannot be read is put into `damage`, a cut last line is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
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


def object_in(line: bytes) -> dict[str, Any]:
    """The JSON object a line holds; ValueError where it holds none."""
    try:
        entry = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(entry, dict):
        raise ValueError("it holds no JSON object")
    return entry


def one_line(error: BaseException) -> str:
    """Why a line or a file could not be read, on one line."""
    what = error.what if isinstance(error, MeshwrightError) else str(error)
    return what.replace("\n", " ")


def _whole(entry: Mapping[str, Any], name: str) -> int:
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise ValueError(f"{name} is {'missing' if value is None else repr(value)[:40]}")
    return value


def _number(entry: Mapping[str, Any], name: str) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.40}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number") from None


def _required(entry: Mapping[str, Any], name: str) -> float:
    value = _number(entry, name)
    if value is None:
        raise ValueError(f"{name} is missing")
    return value
