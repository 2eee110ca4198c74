"""MLPerf training logs: the `:::MLLOG {json}` lines of a run among whatever else its processes print, from round v3.0 on.

What a log says about its steps changed over the rounds; `step_times` reads, in this order of preference,

1. a timer for every step (`tracked_stats` with `train_step_time` or `train_step_timing`, lines one step apart);
2. the wall clock between progress lines that stand several steps apart;
3. the wall clock from the start of a block to its evaluation, divided by the block's steps.

A line that was cut at the end of the file is left out, and `Log.complete` is false; a damaged line before that is an error
(`DamagedLog`). `salvage_log` reads what is whole of such a log, and says which lines are not.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.files import READABLE, read_text

MARKER = ":::MLLOG"
STEP_TIMERS = ("train_step_time", "train_step_timing")  # the second until v4.1
PROGRESS = (*STEP_TIMERS, "train_loss", "reduced_train_loss")  # a tracked_stats line with one of these ends a step
COUNTERS = ("samples_count", "step", "epoch_num")  # of a line's metadata, the first that is there
MAD_TO_STD = 1.4826  # of a normal distribution

_DECODE = json.JSONDecoder().raw_decode
_KEY = re.compile(r'"key"\s*:\s*"(\w+)"')


AS_WRITTEN = "use the log as the run wrote it"


class UnreadableLog(InputError):
    """A file that cannot be opened or read."""


class DamagedLog(InputError):
    """A line of the log cannot be read, though others follow it."""

    def __init__(self, path: str, line: int, why: str) -> None:
        super().__init__(f"a damaged {MARKER} line: {why}", where=f"{path}: line {line}", fix=AS_WRITTEN)
        self.line = line


@dataclass(frozen=True, slots=True)
class DamagedLine:
    """A `:::MLLOG` line that cannot be read."""

    line: int  # in its file, from 1
    why: str
    key: str  # as far as it is legible; "" where it is not: the line may have been any


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One `:::MLLOG` line."""

    time_ms: float
    key: str
    value: Any
    metadata: Mapping[str, Any]
    line: int  # in its file, from 1

    @property
    def count(self) -> float | None:
        """How far the run had come, in the log's own unit (samples; tokens in GPT-3 logs); None where the line does not say."""
        for name in COUNTERS:
            if name in self.metadata:
                value = self.metadata[name]
                return float(value) if _is_number(value) else None
        return None


@dataclass(frozen=True, slots=True)
class LoggedEvaluation:
    """One evaluation: its seconds, what it measured, and after how many samples."""

    seconds: float
    quality: float | None
    samples: float | None


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The step times of one or several runs, in their order, and how they were read."""

    seconds: NDArray[np.float64]
    is_first: NDArray[np.bool_]  # the first after a start or an evaluation
    method: str

    @property
    def steady_s(self) -> NDArray[np.float64]:
        """Seconds of the steps that follow another step; of all of them where an evaluation follows every step."""
        steady = self.seconds[~self.is_first]
        return steady if len(steady) else self.seconds

    @property
    def median_s(self) -> float:
        """Median seconds of a step, the first after a start or an evaluation left out."""
        return float(np.median(self.steady_s))

    @property
    def first_median_s(self) -> float:
        """Median seconds of the first step after a start or an evaluation; nan where none is marked."""
        return float(np.median(self.seconds[self.is_first])) if self.is_first.any() else math.nan

    @property
    def robust_std_pct(self) -> float:
        """Spread of the steady steps in per cent of their median, by the median absolute deviation: stalls do not count."""
        deviation = np.median(np.abs(self.steady_s - self.median_s))
        return float(100 * MAD_TO_STD * deviation / self.median_s)

    @property
    def std_pct(self) -> float:
        """Standard deviation of the steady steps in per cent of their mean: stalls count."""
        return float(100 * np.std(self.steady_s) / np.mean(self.steady_s))

    @property
    def p99_over_p50(self) -> float:
        """99th percentile of the steady steps over their median."""
        return float(np.percentile(self.steady_s, 99)) / self.median_s

    @property
    def worst(self) -> tuple[int, float]:
        """Number, from 1, and seconds of the longest of all steps, first ones included."""
        index = int(np.argmax(self.seconds))
        return index + 1, float(self.seconds[index])

    @property
    def drift_pct(self) -> float:
        """Median of the last tenth of the steady steps against that of the first tenth, in per cent."""
        tenth = math.ceil(len(self.steady_s) / 10)
        first, last = np.median(self.steady_s[:tenth]), np.median(self.steady_s[-tenth:])
        return float(100 * (last / first - 1))

    @staticmethod
    def joined(parts: Sequence[StepTimes]) -> StepTimes:
        """The steps of several runs as one series."""
        methods = dict.fromkeys(part.method for part in parts)
        seconds = np.concatenate([part.seconds for part in parts])
        return StepTimes(seconds, np.concatenate([part.is_first for part in parts]), "; ".join(methods))


@dataclass(frozen=True, slots=True)
class Log:
    """One run as its log gives it. A value that the log lacks is an error only when something asks for it."""

    path: str
    events: tuple[LogEvent, ...]
    cut: bool  # the last line was not whole
    cut_line: int = 0  # that line, from 1
    empty_line: int = 0  # the first line that holds zero bytes, as a broken disk leaves them, from 1
    damaged: tuple[DamagedLine, ...] = ()  # lines that others follow and that cannot be read

    def first(self, key: str) -> LogEvent | None:
        """The first line with `key`, or None."""
        return next((event for event in self.events if event.key == key), None)

    def required(self, key: str) -> LogEvent:
        """The first line with `key`; an error where there is none."""
        event = self.first(key)
        if event is None:
            last = self.events[-1]
            raise InputError(
                f"the log has no {key} line",
                where=f"{self.path}: {len(self.events)} {MARKER} lines, the last is line {last.line} ({last.key})",
                fix="use the whole log of a finished run" if key == "run_stop" else f"use a log that says {key}",
            )
        return event

    @property
    def complete(self) -> bool:
        """Whether the run's start and end are there and no line is cut."""
        return not self.cut and not self.damaged and self.first("run_start") is not None and self.first("run_stop") is not None

    @property
    def benchmark(self) -> str:
        """The benchmark's name as submitted: llama31_405b, ..."""
        return str(self.required("submission_benchmark").value)

    @property
    def organisation(self) -> str:
        """Who submitted it."""
        return str(self.required("submission_org").value)

    @property
    def platform(self) -> str:
        """The machine in the submitter's words (not always filled in)."""
        return str(self.required("submission_platform").value)

    @property
    def global_batch_size(self) -> int:
        """Sequences a step."""
        return self._count("global_batch_size")

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a replica in a step."""
        return self._count("gradient_accumulation_steps")

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sequence; None where the log does not say (LoRA logs)."""
        return self._count("max_sequence_length") if self.first("max_sequence_length") else None

    @property
    def status(self) -> str:
        """How the run ended: "success", "aborted"; "" where the log ends before the run does."""
        stop = self.first("run_stop")
        return str(stop.metadata.get("status", "")) if stop else ""

    @property
    def time_to_train_s(self) -> float:
        """Seconds from run_start to run_stop: what MLPerf scores."""
        return self._span_s("run_start", "run_stop")

    @property
    def initialisation_s(self) -> float:
        """Untimed seconds before the run: from the first process's init_start to init_stop."""
        return self._span_s("init_start", "init_stop")

    @property
    def evaluations(self) -> tuple[LoggedEvaluation, ...]:
        """The finished evaluations, in order."""
        return tuple(_evaluations(self.events, self.counts_per_sample))

    @property
    def num_steps(self) -> float:
        """Steps up to the last evaluation."""
        return self.samples_to_target / self.global_batch_size

    @property
    def target(self) -> float | None:
        """What the evaluation must come down to; None where the log does not say (before v5.1)."""
        event = self.first("target_accuracy")
        return float(event.value) if event and _is_number(event.value) else None

    @property
    def num_evaluations(self) -> int:
        """Finished evaluations."""
        return len(self.evaluations)

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluation was begun: a run that was stopped early may have none."""
        return self.first("eval_start") is not None or self.first("eval_accuracy") is not None

    @property
    def samples_trained(self) -> float | None:
        """Sequences trained on by the last step that is logged; None where no step is."""
        counts = [event.count for event in self.events if is_progress(event) and event.count is not None]
        return max(counts) / self.counts_per_sample if counts else None

    @property
    def samples_to_target(self) -> float:
        """Sequences trained on when the last evaluation was made."""
        counted = [e for e in self.events if e.key in ("eval_start", "eval_accuracy", "eval_stop") and e.count is not None]
        if not counted:
            raise InputError("no evaluation says how many samples came before it", where=self.path, fix="use a log with evaluations")
        return float(counted[-1].count or 0.0) / self.counts_per_sample

    @property
    def counts_per_sample(self) -> int:
        """What a sample adds to the log's counter: 1, or the sequence length in the logs that count tokens (GPT-3)."""
        if self.seq_len is None or self.first("global_batch_size") is None:
            return 1
        counts = sorted({event.count for event in self.events if event.count and (event.key == "eval_start" or is_progress(event))})
        if not counts:
            return 1
        smallest = min([counts[0], *(b - a for a, b in pairwise(counts))])
        return self.seq_len if smallest % (self.global_batch_size * self.seq_len) == 0 else 1

    def _span_s(self, start_key: str, stop_key: str) -> float:
        start, stop = self.required(start_key), self.required(stop_key)
        if stop.time_ms < start.time_ms:
            raise InputError(
                f"{stop_key} (line {stop.line}) is {_seconds(stop, start):.3f} s before {start_key} (line {start.line})",
                where=self.path,
                fix=AS_WRITTEN,
            )
        return _seconds(start, stop)

    def _count(self, key: str) -> int:
        event = self.required(key)
        if not _is_number(event.value) or event.value < 1 or event.value != int(event.value):
            raise InputError(
                f"{key} is {event.value!r}, not a whole number of at least 1", where=f"{self.path}: line {event.line}", fix=AS_WRITTEN
            )
        return int(event.value)


def read_log(path: str | Path) -> Log:
    """The log in the file at `path`; an error where a line of it is damaged."""
    return _undamaged(salvage_log(path))


def parse_log(text: str, path: str) -> Log:
    """The log that `text` holds; `path` is what errors call it."""
    return _undamaged(salvage(text, path))


def _undamaged(log: Log) -> Log:
    if log.damaged:
        raise DamagedLog(log.path, log.damaged[0].line, log.damaged[0].why)
    return log


def salvage_log(path: str | Path) -> Log:
    """The log in the file at `path` as far as it can be read; `Log.damaged` are the lines that cannot."""
    try:
        text = read_text(path, errors="replace")
    except OSError as error:
        raise UnreadableLog(f"cannot read the log: {error.strerror or error}", where=str(path), fix=READABLE) from None
    return salvage(text, str(path))


def salvage(text: str, path: str) -> Log:
    """What can be read of the log that `text` holds; an error only where that is nothing."""
    events: list[LogEvent] = []
    damaged: list[DamagedLine] = []
    empty_line = 0
    is_last_cut = False
    for number, line in enumerate(text.split("\n"), start=1):
        if not empty_line and "\x00" in line:
            empty_line = number
        for fragment in line.split(MARKER)[1:]:
            try:
                events.append(_event(fragment, number))
                is_last_cut = False
            except (ValueError, RecursionError) as error:
                key = _KEY.search(fragment)
                damaged.append(DamagedLine(number, str(error), key[1] if key else ""))
                is_last_cut = True
    if not events:
        if damaged:
            raise DamagedLog(path, damaged[0].line, damaged[0].why)
        raise InputError(f"no {MARKER} line in the file", where=path, fix="give an MLPerf result file (result_0.txt)")
    cut_line = damaged.pop().line if is_last_cut else 0
    return Log(path, tuple(events), cut=is_last_cut, cut_line=cut_line, empty_line=empty_line, damaged=tuple(damaged))


def _event(fragment: str, line: int) -> LogEvent:
    entry, _ = _DECODE(fragment.lstrip())
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    time_ms, key, metadata = entry.get("time_ms"), entry.get("key"), entry.get("metadata") or {}
    if not _is_number(time_ms):
        raise ValueError(f"time_ms is {'missing' if time_ms is None else repr(time_ms)}")
    if not isinstance(key, str):
        raise ValueError(f"key is {'missing' if key is None else repr(key)}")
    if not isinstance(metadata, dict):
        raise ValueError("metadata is not a JSON object")
    return LogEvent(float(time_ms), key, entry.get("value"), metadata, line)


def _is_number(value: object) -> TypeGuard[float]:
    """Whether `value` is a finite number (JSON as Python reads it allows NaN, and integers no float can hold)."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _seconds(start: LogEvent, stop: LogEvent) -> float:
    return (stop.time_ms - start.time_ms) / 1e3


def _evaluations(events: Iterable[LogEvent], counts_per_sample: int) -> Iterator[LoggedEvaluation]:
    start: LogEvent | None = None
    quality: float | None = None
    for event in events:
        if event.key == "eval_start":
            start, quality = event, None
        elif event.key == "eval_accuracy" and _is_number(event.value):
            quality = float(event.value)
        elif event.key == "eval_stop" and start is not None:
            samples = None if start.count is None else start.count / counts_per_sample
            yield LoggedEvaluation(_seconds(start, event), quality, samples)
            start = None


@dataclass(frozen=True, slots=True)
class _Interval:
    """Seconds between two neighbouring marks of a block, and the steps between them."""

    seconds: float
    num_steps: float
    is_first: bool
    timer_s: float | None  # what the log's own timer says of the step that ends the interval


def step_times(log: Log) -> StepTimes:
    """Seconds of the run's steps, read in the best of the three ways the log allows.

    A timer that a round logs one step late (v6.0) moves the mark of the first step by one; the median does not notice.
    """
    per_step = log.global_batch_size * log.counts_per_sample
    intervals = list(_progress_intervals(log.events, per_step))
    timed = [(i.timer_s, i.is_first) for i in intervals if i.timer_s is not None and i.timer_s > 0]
    if timed and np.median([i.num_steps for i in intervals]) == 1:
        return _steps(timed, "timer of every step")
    whole = [(i.seconds / i.num_steps, i.is_first) for i in intervals if i.seconds > 0]
    if not all(is_first for _, is_first in whole):
        return _steps(whole, "wall clock between progress lines")
    # The first block also holds what the first evaluation sets up: it counts as a first step does.
    blocks = [(seconds / num_steps, i == 0) for i, (seconds, num_steps) in enumerate(_blocks(log.events, per_step))]
    if not blocks:
        last = log.events[-1]
        raise InputError(
            "the log holds no whole step: neither progress lines nor a block with its evaluation",
            where=f"{log.path}: ends at line {last.line} ({last.key})",
            fix="use a log that reaches its first evaluation",
        )
    return _steps(blocks, "wall clock of a block / its steps")


def _steps(seconds_and_first: Sequence[tuple[float, bool]], method: str) -> StepTimes:
    seconds, is_first = zip(*seconds_and_first, strict=True)
    return StepTimes(np.array(seconds, dtype=np.float64), np.array(is_first, dtype=np.bool_), method)


def is_progress(event: LogEvent) -> bool:
    """Whether the line ends a step. The summaries at a block's end look alike, but give a throughput or no step."""
    if event.key != "tracked_stats" or not isinstance(event.value, dict) or "step" not in event.metadata:
        return False
    return "throughput" not in event.value and any(name in event.value for name in PROGRESS)


def _progress_intervals(events: Iterable[LogEvent], counts_per_step: int) -> Iterator[_Interval]:
    """The intervals that end with a progress line; the first of a block begins with the block."""
    before: LogEvent | None = None
    done = 0.0  # the counter so far; block_start carries other things under the same name in some rounds
    for event in events:
        if event.key == "block_start":
            before = event
        elif event.key in ("eval_start", "block_stop", "run_stop"):
            before = None
            done = max(done, event.count or 0.0) if event.key == "eval_start" else done
        elif before is not None and is_progress(event) and event.count is not None and event.count > done:
            timers = [event.value[name] for name in STEP_TIMERS if _is_number(event.value.get(name))]
            timer_s = float(timers[0]) if timers else None
            yield _Interval(_seconds(before, event), (event.count - done) / counts_per_step, before.key == "block_start", timer_s)
            before, done = event, event.count


def _blocks(events: Iterable[LogEvent], counts_per_step: int) -> Iterator[tuple[float, float]]:
    """Seconds and steps of the blocks, each from its start to the evaluation that ends it."""
    start: LogEvent | None = None
    done = 0.0
    for event in events:
        if event.key == "block_start":
            start = event
        elif event.key == "eval_start" and event.count is not None:
            if start is not None and event.count > done and event.time_ms > start.time_ms:
                yield _seconds(start, event), (event.count - done) / counts_per_step
            start, done = None, max(done, event.count)


def read_step_times(path: str | Path) -> StepTimes:
    """Step times from a CSV with the columns `step,step_s`, and `first_after_eval` (0 or 1) where it is known.

    Without that column the first row alone counts as a first step. `step_time_s`, the older name of `step_s`, is read too.
    """
    try:
        text = read_text(path, encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"cannot read the step times: {error.strerror or error}", where=str(path), fix=READABLE) from None
    rows = csv.DictReader(text.splitlines())
    columns = rows.fieldnames or ()
    times = "step_time_s" if "step_time_s" in columns else "step_s"
    for column in ("step", times):
        if column not in columns:
            raise InputError(f"no column {column!r}", where=f"{path}: line 1", fix="name the columns step,step_s")
    try:
        read = [(_positive_s(row, times, f"{path}: line {rows.line_num}"), row.get("first_after_eval")) for row in rows]
    except csv.Error as error:
        raise InputError(
            f"not a CSV: {error}", where=f"{path}: line {rows.line_num}", fix="give a table with the columns step,step_s"
        ) from None
    if not read:
        raise InputError("the file has no step", where=str(path), fix="give at least one row of step,step_s")
    is_first = [mark == "1" if mark is not None else i == 0 for i, (_, mark) in enumerate(read)]
    return _steps([(seconds, first) for (seconds, _), first in zip(read, is_first, strict=True)], "step-time CSV")


def _positive_s(row: Mapping[str, Any], column: str, where: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{column} is {text!r}, not a positive number of seconds", where=where, fix="give the seconds of the step, such as 1.25"
        )
    return value


SEPARATOR = "\n" + "-" * 30 + "\n"  # between the messages of the checker's report


def complaints(report: str, errors: str) -> tuple[str, ...]:
    """The messages of the checker that found fault with a log, a line each; if it crashed, its last message."""
    _, _, messages = report.partition("WARNING -  ")
    messages = messages.removesuffix("\n").removesuffix("ERROR - FAILED")
    found = tuple(_short(message) for message in messages.split(SEPARATOR) if message.strip())
    return found or (f"the checker broke down: {errors.strip().splitlines()[-1] if errors.strip() else 'it says nothing'}",)


def _short(message: str) -> str:
    """A message without the log line and the checker's state that follow it."""
    lines = message.strip().splitlines()
    tests = [line for line in lines[1:] if line.startswith("failed test:")]
    return " ".join([lines[0].rstrip(":"), *tests])
