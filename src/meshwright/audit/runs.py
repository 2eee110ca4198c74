"""One MLPerf log -> its results, computed again from its lines, and whether it is complete."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.audit.flaws import Flaw, flaws
from meshwright.audit.rules import Benchmark, benchmarks
from meshwright.errors import InputError
from meshwright.record.log_steps import TIMERS, WITH_EVALUATION, step_times, stretches
from meshwright.record.mllog import Log, LoggedEvaluation, salvage_logs
from meshwright.record.mllog_lines import EVALUATION, MARKER, DamagedLine, DamagedLog, UnreadableLog
from meshwright.record.step_times import StepTimes

WHOLE, ABORTED, TRUNCATED, DAMAGED = "whole", "aborted", "truncated", "damaged"
PACKED = {b"PK": "zip", b"(\xb5/\xfd": "zstd"}
COUNTING = ("global_batch_size", "max_sequence_length")  # without them the unit of a log's counter is not known
CLOCKS = 2e-3  # share of the run's time: timers and the clock of the log are read a moment apart
WARM_UP = "warmup_time"  # of a tracked_stats line: seconds of untimed steps before the clock starts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoggedRun:
    """The results of one log, computed again. A value that the log does not give is None."""

    path: str
    state: str  # WHOLE, ABORTED (the run gave up), TRUNCATED (the file ends before the run) or DAMAGED
    line: int = 0  # the line from which on it is incomplete; 0 if it is whole, or no line shows what is missing
    problem: str = ""
    log: Log | None = None
    time_to_train_s: float | None = None
    initialisation_s: float | None = None  # before the clock: not scored
    warm_up_s: float | None = None  # of the initialisation
    samples: float | None = None
    num_steps: float | None = None
    steps: StepTimes | None = None
    no_steps: str = ""  # why there are no step times
    evaluations: tuple[LoggedEvaluation, ...] = ()
    target: float | None = None
    flaws: tuple[Flaw, ...] = ()
    unknown: frozenset[str] = frozenset()  # fields and properties whose value may be on a damaged line

    @property
    def is_whole(self) -> bool:
        """Whether this is the complete log of a run that ended."""
        return self.state in (WHOLE, ABORTED)

    @property
    def reached(self) -> bool | None:
        """Whether the last evaluation reached the target; None if the log or the rules do not say. NaN did not reach it."""
        if "quality" in self.unknown:
            return None
        if self.target is None or self.quality is None:
            return False if self.log and _is_no_number(self.log) else None
        return self.quality <= self.target

    @property
    def quality(self) -> float | None:
        """What the last evaluation measured."""
        return self.evaluations[-1].quality if self.evaluations and "quality" not in self.unknown else None

    @property
    def num_evaluations(self) -> int | None:
        """Number of finished evaluations; None if a damaged line may belong to another one."""
        return None if "evaluations" in self.unknown else len(self.evaluations)

    @property
    def are_evaluations_timed(self) -> bool:
        """Whether the log says when its evaluations began."""
        return all(one.seconds is not None for one in self.evaluations)

    @property
    def evaluation_s(self) -> float | None:
        """Seconds of all evaluations; None if the log does not time them, or if a damaged line may belong to one."""
        if "evaluations" in self.unknown or not self.are_evaluations_timed:
            return None
        return sum(one.seconds or 0.0 for one in self.evaluations)

    @property
    def stepping_s(self) -> float | None:
        """Seconds of all steps; steps that were not timed count like the others. None if steps and evaluations cannot be separated."""
        if self.steps is None or self.num_steps is None or self.log is None or self.steps.method == WITH_EVALUATION:
            return None
        if self.steps.method == TIMERS:
            missing = self.num_steps - len(self.steps.seconds)
            return float(self.steps.seconds.sum()) + max(missing, 0.0) * self.steps.median_s
        trained = [one for one in stretches(self.log) if not one.is_with_evaluation]
        if trained and sum(one.num_steps for one in trained) == self.num_steps:
            return sum(one.seconds for one in trained)
        return self.num_steps * self.steps.mean_s

    @property
    def rest_s(self) -> float | None:
        """Seconds of the run in neither steps nor evaluations; None if one of them is not known, or if they exceed the run."""
        left_s = self._left_s()
        return None if left_s is None or self.is_overfull else max(left_s, 0.0)

    @property
    def is_overfull(self) -> bool:
        """Whether steps and evaluations together take longer than the run, which is impossible: something is misread or false."""
        left_s = self._left_s()
        return left_s is not None and self.time_to_train_s is not None and left_s < -CLOCKS * self.time_to_train_s

    def _left_s(self) -> float | None:
        if self.time_to_train_s is None or self.stepping_s is None or self.evaluation_s is None:
            return None
        return self.time_to_train_s - self.stepping_s - self.evaluation_s

    @property
    def of_reference(self) -> float | None:
        """Samples divided by those that MLPerf's reference needs at this batch; None if either is not known."""
        rules = _rules(self.log) if self.log else None
        if rules is None or not rules.reference or not self.samples or not self.num_steps:
            return None
        return self.samples / rules.reference_samples(round(self.samples / self.num_steps))

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings in the log before the clock starts, by key; lines that many processes write are left out."""
        found: dict[str, Any] = {}
        for event in self.log.events if self.log else ():
            if event.key == "run_start":
                break
            if event.key not in ("cache_clear", "init_start", "init_stop", "tracked_stats"):
                found.setdefault(event.key, event.value)
        return found


@dataclass(frozen=True, slots=True)
class _Parts:
    """The readable parts of a log, and what is missing."""

    values: dict[str, Any] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)


def read_run(path: str | Path) -> LoggedRun:
    """The log at `path` with one run. A damaged or truncated log is a state; only a file that cannot be opened is an error."""
    found = read_runs(path)
    if len(found) > 1:
        raise InputError(f"the file holds {len(found)} runs", where=str(path), fix="give a log of one run")
    return found[0]


def read_runs(path: str | Path) -> list[LoggedRun]:
    """The same for each run in a file; nearly always there is one."""
    try:
        logs = salvage_logs(path)
    except DamagedLog as error:
        return [LoggedRun(path=str(path), state=DAMAGED, line=error.line, problem=error.what)]
    except UnreadableLog:
        raise
    except InputError as error:
        return [LoggedRun(path=str(path), state=DAMAGED, line=1, problem=error.what + _kind(Path(path)))]
    return [_run(log) for log in logs]


def _run(log: Log) -> LoggedRun:
    parts = _parts(log)
    unknown = _unknown(log)
    known = {name: value for name, value in parts.values.items() if name not in unknown or name == "evaluations"}
    if "steps" in unknown:
        known["no_steps"] = "a line that cannot be read may say how large a step is"
    found = flaws(log)
    state, line, problem = _state(log, found, parts.missing)
    run = LoggedRun(path=log.path, state=state, line=line, problem=problem, log=log, flaws=found, unknown=unknown, **known)
    return _overfull(run) if run.is_whole and run.is_overfull else run


def _overfull(run: LoggedRun) -> LoggedRun:
    """The same log as damaged, because such a run is impossible."""
    assert run.log is not None
    within = f"its steps ({run.stepping_s:,.1f} s) and evaluations ({run.evaluation_s:,.1f} s)"
    problem = f"{within} take longer than the run ({run.time_to_train_s:,.1f} s)"
    return replace(run, state=DAMAGED, line=run.log.required("run_stop").line, problem=problem)


def _kind(path: Path) -> str:
    """What kind of file it is, if it has no MLPerf lines, judged by its first bytes; empty if they do not show it."""
    with path.open("rb") as file:
        first = file.read(4)
    if not first:
        return ", which is empty"
    return next((f", which is packed by {name}: unpack it first" for start, name in PACKED.items() if first.startswith(start)), "")


def _state(log: Log, found: tuple[Flaw, ...], missing: list[str]) -> tuple[str, int, str]:
    """The state of a log, the line from which on it is incomplete, and the reason."""
    last = log.events[-1]
    damage = [flaw for flaw in found if flaw.is_damage]
    if damage:
        more = f" (and {len(damage) - 1} more)" if len(damage) > 1 else ""
        return DAMAGED, damage[0].line, f"{damage[0].what}{more}"
    if log.cut:
        return TRUNCATED, log.cut_line, f"the last {MARKER} line is cut"
    if log.first("run_stop") is None:
        return TRUNCATED, last.line, f"it ends after {last.key}, without run_stop"
    if log.first("run_start") is None:
        return DAMAGED, log.events[0].line, "it has no run_start"
    if missing:
        return DAMAGED, 0, missing[0]
    if log.status != "success":
        stop = log.required("run_stop")
        return ABORTED, stop.line, f"run_stop says {log.status or 'no status'}"
    return WHOLE, 0, ""


def _unknown(log: Log) -> frozenset[str]:
    """What is unknown because of damaged lines: a line counts by its key, or by its place if the key is not legible."""
    found: set[str] = set()
    for one in log.damaged:
        found |= _unknown_by(one, log)
    return frozenset(found)


def _unknown_by(one: DamagedLine, log: Log) -> set[str]:
    first = log.first("init_start")
    seen = [(event.line, event.key) for event in log.events] + [(other.line, other.key) for other in log.damaged]
    is_setting = any(one.line < line for line, key in seen if key == "run_start")
    found: set[str] = set()
    if one.key in ("run_start", "run_stop"):
        found.add("time_to_train_s")
    if one.key in ("init_start", "init_stop") or (not one.key and first is not None and one.line < first.line):
        found.add("initialisation_s")
    if one.key in COUNTING or (not one.key and is_setting and any(log.first(key) is None for key in COUNTING)):
        found |= {"samples", "num_steps", "steps"}
    if one.key in EVALUATION or (not one.key and not is_setting):
        begun = [event.line for event in log.events if event.key == "eval_start"]
        # An evaluation that begins after the damage is complete: then only the number of earlier ones is not known.
        found |= {"evaluations"} if begun and one.line < begun[-1] else {"evaluations", "quality", "samples", "num_steps"}
    return found


def _parts(log: Log) -> _Parts:
    parts = _Parts()
    for name in ("time_to_train_s", "initialisation_s", "evaluations"):
        _try(parts, name, lambda name=name: getattr(log, name), is_needed=False)
    if log.is_evaluated or log.status == "success":
        _try(parts, "samples", lambda: log.samples_to_target, is_needed=False)
        _try(parts, "num_steps", lambda: log.num_steps, is_needed=True)
    else:  # it was stopped before its first evaluation, which is no damage: what it trained on by then is what its steps say
        trained = log.samples_trained
        parts.values["samples"] = trained
        _try(parts, "num_steps", lambda: None if trained is None else trained / log.global_batch_size, is_needed=True)
    try:
        parts.values["steps"] = step_times(log)
    except InputError as error:
        parts.values["no_steps"] = error.what
    parts.values["warm_up_s"] = _warm_up_s(log)
    parts.values["target"] = _target(log)
    return parts


def _try(parts: _Parts, name: str, read: Any, *, is_needed: bool) -> None:
    try:
        parts.values[name] = read()
    except InputError as error:
        if is_needed:
            parts.missing.append(error.what)


def _is_no_number(log: Log) -> bool:
    """Whether the last evaluation is logged as NaN or infinity."""
    found = [event.value for event in log.events if event.key == "eval_accuracy"]
    return bool(found) and isinstance(found[-1], float) and not math.isfinite(found[-1])


def _warm_up_s(log: Log) -> float | None:
    for event in log.events:
        if event.key == "tracked_stats" and isinstance(event.value, dict) and isinstance(event.value.get(WARM_UP), int | float):
            return float(event.value[WARM_UP])
    return None


def _target(log: Log) -> float | None:
    """The target from the log, or else from the rules."""
    rules = _rules(log)
    return log.target if log.target is not None else rules.target if rules else None


def _rules(log: Log) -> Benchmark | None:
    name = log.first("submission_benchmark")
    return benchmarks().get(str(name.value)) if name else None
