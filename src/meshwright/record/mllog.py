"""MLPerf training logs: a run as its `:::MLLOG {json}` lines describe it, from round v3.0 on.

Submitters log their runs in their own ways. Counters count samples, tokens, steps or epochs (`Log.samples_at`); an evaluation has a
start, a stop, both or neither; the first block may have no start. `record.log_steps` reads the step times.

A line that was cut at the end of the file is left out, and `Log.complete` is false; a damaged line before that is an error
(`DamagedLog`). `salvage_log` reads the undamaged lines of such a log, and says which lines are damaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median

from meshwright.errors import InputError
from meshwright.record.mllog_lines import (
    EVALUATION,
    MARKER,
    DamagedLine,
    DamagedLog,
    LogEvent,
    lines_of,
    number,
    read_log_text,
)

STEP_TIMERS = ("train_step_time", "train_step_timing")  # the second until v4.1
PROGRESS = (*STEP_TIMERS, "train_loss", "reduced_train_loss")  # a tracked_stats line with one of these ends a step
LOSSES = ("train_loss", "reduced_train_loss")  # the losses, as lines of their own
SEQUENCE_LENGTHS = ("max_sequence_length", "sequence_length")
RULED_LENGTHS = {"gpt3": 2048, "llama31_405b": 8192, "llama31_8b": 8192}  # tokens of a sequence by MLPerf's rules (v3.0 to v6.0)
TOTALS = ("train_samples", "trained_samples")  # before the run: the samples of the data set; after it: the samples that were trained on
RESUMED = "resumed"  # a mark of our own trainer: the run before it may have stopped anywhere
LEAST_EVALUATION_S = 0.05  # shorter times lie between two lines that are written directly after each other


@dataclass(frozen=True, slots=True)
class LoggedEvaluation:
    """One evaluation: what it measured, after how many samples, and its seconds (None if the log does not time it)."""

    seconds: float | None
    quality: float | None
    samples: float | None


@dataclass(frozen=True, slots=True)
class EvaluationLines:
    """The lines of one evaluation, in their order."""

    lines: tuple[LogEvent, ...]
    start: LogEvent | None  # the line with which it begins, if there is one

    def line(self, key: str) -> LogEvent | None:
        """The line with `key`, or None."""
        return next((event for event in self.lines if event.key == key), None)

    @property
    def is_finished(self) -> bool:
        """Whether it has a result or an end."""
        return any(event is not self.start for event in self.lines)

    @property
    def quality(self) -> float | None:
        """What the evaluation measured: the last of its results that is a number."""
        found = [value for event in self.lines if event.key == "eval_accuracy" and (value := number(event.value)) is not None]
        return found[-1] if found else None

    @property
    def seconds(self) -> float | None:
        """Seconds from its start to its stop, or to its result if no stop is logged; None without a start."""
        stop = self.line("eval_stop") or self.line("eval_accuracy")
        return None if self.start is None or stop is None else seconds_between(self.start, stop)


@dataclass(frozen=True)
class Log:
    """One run as its log describes it. A missing value is an error only when it is asked for."""

    path: str
    events: tuple[LogEvent, ...]
    cut: bool  # the last line is incomplete
    cut_line: int = 0  # that line, from 1
    empty_line: int = 0  # the first line with zero bytes, which a broken disk leaves, from 1
    damaged: tuple[DamagedLine, ...] = ()  # lines before the last one that cannot be read
    again: tuple[int, ...] = ()  # lines that were printed again, long after the first time: they count once
    unordered_line: int = 0  # the first line that comes after a later one: the events are then sorted by their clock

    def first(self, key: str) -> LogEvent | None:
        """The first line with `key`, or None."""
        return next((event for event in self.events if event.key == key), None)

    def required(self, key: str) -> LogEvent:
        """The first line with `key`; an error if there is none."""
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
        """Whether the log has the start and the end of the run, and no line is cut."""
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
        """Tokens of a sequence; None if the log does not say (LoRA logs)."""
        return next((self._count(key) for key in SEQUENCE_LENGTHS if self.first(key)), None)

    @property
    def _ruled_length(self) -> int | None:
        """Tokens of a sequence, by the rules of the benchmark if the log does not say it."""
        name = self.first("submission_benchmark")
        return self.seq_len or (RULED_LENGTHS.get(str(name.value)) if name else None)

    @property
    def status(self) -> str:
        """How the run ended: "success", "aborted"; "" if the log ends before the run does."""
        stop = self.first("run_stop")
        if stop is None:
            return ""
        said = stop.metadata.get("status", stop.value.get("status") if isinstance(stop.value, dict) else stop.value)
        return said if isinstance(said, str) else ""

    @property
    def time_to_train_s(self) -> float:
        """Seconds from run_start to run_stop, which is the MLPerf score of the run."""
        return self._span_s("run_start", "run_stop")

    @property
    def initialisation_s(self) -> float:
        """Untimed seconds before the run: from the first process's init_start to init_stop."""
        return self._span_s("init_start", "init_stop")

    @property
    def evaluations(self) -> tuple[LoggedEvaluation, ...]:
        """The finished evaluations, in order."""
        return tuple(LoggedEvaluation(one.seconds, one.quality, self.samples_of(one)) for one in self.logged_evaluations if one.is_finished)

    @cached_property
    def logged_evaluations(self) -> tuple[EvaluationLines, ...]:
        """The lines of each evaluation, the last one finished or not.

        In a log without eval_start an evaluation begins when its block stops, if its results come later than that: some submitters log the
        stop of a block after its evaluation.
        """
        if self.first("eval_start") is None:
            begun = [one for one in _evaluations(self.events, "block_stop") if one.is_finished]
            waits = [seconds_between(one.start, one.lines[1]) for one in begun if one.start is not None]
            if waits and median(waits) >= LEAST_EVALUATION_S:
                return tuple(begun)
        return tuple(_evaluations(self.events, "eval_start"))

    @property
    def num_steps(self) -> float:
        """Steps up to the last evaluation."""
        batch = self.global_batch_size
        return self.samples_to_target / batch

    @property
    def target(self) -> float | None:
        """The loss that an evaluation must reach; None if the log does not say (before v5.1)."""
        event = self.first("target_accuracy")
        return number(event.value) if event else None

    @property
    def num_evaluations(self) -> int:
        """Finished evaluations."""
        return len(self.evaluations)

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluation was started: a run that was stopped early may have none."""
        return self.first("eval_start") is not None or self.first("eval_accuracy") is not None

    @property
    def are_evaluations_timed(self) -> bool:
        """Whether the log says when its evaluations began."""
        return all(one.seconds is not None for one in self.evaluations)

    @property
    def samples_trained(self) -> float | None:
        """Sequences trained on up to the last logged step; None if no step is logged."""
        counts = [samples for event in self.progress if (samples := self.samples_at(event)) is not None]
        return max(counts) if counts else None

    @property
    def samples_to_target(self) -> float:
        """Sequences trained on before the last evaluation; if no evaluation says it, those of the whole run.

        Some submitters are one step behind in the result of an evaluation: then the total of the run is right.
        """
        counted = [samples for one in self.logged_evaluations if (samples := self.samples_of(one)) is not None]
        total = self.total_samples if self.logged_evaluations else None
        if not counted and total is None:
            raise InputError("no evaluation says how many samples came before it", where=self.path, fix="use a log with evaluations")
        is_behind = counted and total is not None and total - counted[-1] == self.global_batch_size
        return total if total is not None and (is_behind or not counted) else counted[-1]

    @property
    def total_samples(self) -> float | None:
        """Sequences of the whole run from a line at its end (`train_samples`, or `samples_count` of run_stop); None if there is none.

        In a log that counts tokens the total is in tokens too.
        """
        total = self._last_total()
        if total is None or self.first("global_batch_size") is None:
            return None
        per_sample = (self._ruled_length or 1) if any(unit < 1 for unit in self._units.values()) else 1
        return total / per_sample

    @cached_property
    def progress(self) -> tuple[LogEvent, ...]:
        """The lines that end a step. If any line has `step`, lines without it are summaries of blocks and are left out."""
        found = [event for event in self.events if _is_progress(event)]
        return tuple([event for event in found if "step" in event.metadata] or found)

    def samples_at(self, event: LogEvent) -> float | None:
        """Sequences that the run had trained on at a line; None if the line does not say, or if without a batch its unit is not known."""
        return event.count * self._unit(event.counter) if event.count is not None and self.first("global_batch_size") else None

    def samples_of(self, one: EvaluationLines) -> float | None:
        """The samples of an evaluation, from its start if possible: some submitters are one step behind in the line of the result."""
        lines = [one.line(key) for key in ("eval_start", "eval_stop", "eval_accuracy")]
        return next((samples for event in lines if event and (samples := self.samples_at(event)) is not None), None)

    @cached_property
    def _units(self) -> dict[str, float]:
        """For each name of a counter: how many samples one count is."""
        counted: dict[str, set[float]] = {}
        for event in (*self.progress, *(one for one in self.events if one.key in (*EVALUATION, *LOSSES))):
            if event.count:
                counted.setdefault(event.counter, set()).add(event.count)
        return {name: self._unit_of(name, sorted(counts), max(counted.get("samples_count", {0.0}))) for name, counts in counted.items()}

    def _unit(self, name: str) -> float:
        unit = self._units.get(name, 1.0)
        if math.isnan(unit):
            raise InputError(
                f"{name} counts neither samples nor tokens nor steps of {self.global_batch_size} samples",
                where=self.path,
                fix="use a log that gives samples_count, or one that says train_samples before the run if it counts epochs",
            )
        return unit

    def _unit_of(self, name: str, counts: Sequence[float], most_samples: float) -> float:
        """How many samples one count is, from the name of the counter and its values.

        `samples_count` counts samples, or tokens (GPT-3 of some submitters). `step` counted samples or tokens until v5.0, and steps since
        then. `epoch_num` is in tokens or samples if it grows by whole steps, and otherwise in epochs.
        """
        batch, gap = self.global_batch_size, min([counts[0], *(b - a for a, b in pairwise(counts))])
        length = self._ruled_length
        if length is not None and gap % (batch * length) == 0:
            return 1 / length
        if name == "samples_count":
            return 1.0
        if name == "epoch_num":
            return 1.0 if gap % batch == 0 else self._epoch_samples
        return batch if self._counts_steps(name, counts[-1], gap, most_samples) else 1.0

    @property
    def _epoch_samples(self) -> float:
        """Samples of an epoch; nan if no line before the run states the size of the data set."""
        before = self.events[: len(self.events) - len(self._in_run)]
        found = [value for event in before if event.key in TOTALS and (value := number(event.value))]
        return found[0] if found else math.nan

    def _counts_steps(self, name: str, last: float, gap: float, most_samples: float) -> bool:
        """Whether a counter called step counts steps: decided by the samples in other lines, by timers, or else by its values."""
        batch = self.global_batch_size
        known = most_samples or self._last_total() or 0.0
        if known:
            return abs(math.log(known / (last * batch))) < abs(math.log(known / last)) if batch > 1 else True
        timed = [event for event in self.progress if event.counter == name and event.count and timer_s(event)]
        steps = [
            (after.count - before.count) * (timer_s(after) or 0) / seconds_between(before, after)
            for before, after in pairwise(timed)
            if after.count and before.count and after.count > before.count and after.time_ms > before.time_ms
        ]
        if steps and batch > 1:  # 1 if one count is a step, and the batch size if one count is a sample
            return median(steps) < math.sqrt(batch)
        return name == "step_num" or gap % batch != 0

    def _last_total(self) -> float | None:
        found = [event for event in self._in_run if event.key in TOTALS]
        stop = self.first("run_stop")
        if found:
            return number(found[-1].value)
        return number(stop.metadata.get("samples_count")) if stop else None

    @cached_property
    def _in_run(self) -> tuple[LogEvent, ...]:
        """The lines after run_start."""
        started = next((i for i, event in enumerate(self.events) if event.key == "run_start"), len(self.events))
        return self.events[started + 1 :]

    def _span_s(self, start_key: str, stop_key: str) -> float:
        start, stop = self.required(start_key), self.required(stop_key)
        if stop.time_ms < start.time_ms:
            raise InputError(
                f"{stop_key} (line {stop.line}) is {seconds_between(stop, start):.3f} s before {start_key} (line {start.line})",
                where=self.path,
                fix="use the log as the run wrote it",
            )
        return seconds_between(start, stop)

    def _count(self, key: str) -> int:
        event = self.required(key)
        value = number(event.value)
        if value is None or value < 1 or value != int(value):
            raise InputError(
                f"{key} is {event.value!r}, not a whole number of at least 1",
                where=f"{self.path}: line {event.line}",
                fix="use the log as the run wrote it",
            )
        return int(value)


def read_log(path: str | Path) -> Log:
    """The log in the file at `path`; an error if a line of it is damaged."""
    return _undamaged(salvage_log(path))


def parse_log(text: str, path: str) -> Log:
    """The log in `text`; `path` is its name in errors."""
    return _undamaged(salvage(text, path))


def _undamaged(log: Log) -> Log:
    if log.damaged:
        raise DamagedLog(log.path, log.damaged[0].line, log.damaged[0].why)
    return log


def salvage_log(path: str | Path) -> Log:
    """The log in the file at `path`, as far as it can be read; `Log.damaged` has the lines that cannot."""
    return salvage(read_log_text(path), str(path))


def salvage_logs(path: str | Path) -> list[Log]:
    """The same for a file that may contain several runs, one after another: a log for each, named by the file and its position in it."""
    whole = salvage_log(path)
    parts = list(_runs(whole.events))
    if len(parts) == 1 or whole.damaged or whole.unordered_line:  # a run that starts again without an end is not a second run
        return [whole]
    last = len(parts)
    named = [replace(whole, path=f"{path} (run {i} of {last})", events=events) for i, events in enumerate(parts, start=1)]
    return [*(replace(log, cut=False, cut_line=0) for log in named[:-1]), named[-1]]


def _runs(events: Sequence[LogEvent]) -> Iterator[tuple[LogEvent, ...]]:
    """The lines of each run; the next run begins with the first line of a start after a run_stop."""
    begin, stop_ms = 0, math.inf
    starts = {i for i, event in enumerate(events) if event.key == "run_start"}
    for i, event in enumerate(events):
        if event.key == "run_stop":
            stop_ms = min(stop_ms, event.time_ms)
        elif event.time_ms > stop_ms and _is_start(event) and any(start >= i for start in starts):
            yield tuple(events[begin:i])
            begin, stop_ms = i, math.inf
    yield tuple(events[begin:])


def _is_start(event: LogEvent) -> bool:
    return event.key in ("cache_clear", "init_start", "run_start") or event.key.startswith("submission_")


def salvage(text: str, path: str) -> Log:
    """The readable part of the log in `text`; an error only if nothing can be read."""
    read = lines_of(text)
    damaged = list(read.damaged)
    if not read.events:
        if damaged:
            raise DamagedLog(path, damaged[0].line, damaged[0].why)
        raise InputError(f"no {MARKER} line in the file", where=path, fix="give an MLPerf result file (result_0.txt)")
    cut_line = damaged.pop().line if read.is_last_damaged else 0
    return Log(path, read.events, read.is_last_damaged, cut_line, read.empty_line, tuple(damaged), read.again, read.unordered_line)


def seconds_between(start: LogEvent, stop: LogEvent) -> float:
    """Seconds from one line to another."""
    return (stop.time_ms - start.time_ms) / 1e3


def _evaluations(events: Sequence[LogEvent], start_key: str) -> Iterator[EvaluationLines]:
    """The lines of evaluations, grouped: a result may come between start and stop, after both, or alone."""
    lines: list[LogEvent] = []
    for event in events:
        if event.key not in (start_key, "eval_accuracy", "eval_stop"):
            continue
        keys = [one.key for one in lines]
        is_further_result = event.key == "eval_accuracy" and keys[:1] == [start_key] and "eval_stop" not in keys
        if lines and (event.key == start_key or (event.key in keys and not is_further_result)):
            yield _lines_of_one(lines, start_key)
            lines = []
        lines.append(event)
    if lines:
        yield _lines_of_one(lines, start_key)


def _lines_of_one(lines: Sequence[LogEvent], start_key: str) -> EvaluationLines:
    return EvaluationLines(tuple(lines), lines[0] if lines[0].key == start_key else None)


def _is_progress(event: LogEvent) -> bool:
    """Whether the line may end a step. Summaries at the end of a block look similar, but have a throughput or no step."""
    if event.key != "tracked_stats" or not isinstance(event.value, dict) or event.count is None:
        return False
    return "throughput" not in event.value and any(name in event.value for name in PROGRESS)


def timer_s(event: LogEvent) -> float | None:
    """The log's own timer of the step that a line ends; None if it has none."""
    return next((value for name in STEP_TIMERS if (value := number(event.value.get(name))) is not None), None)


SEPARATOR = "\n" + "-" * 30 + "\n"  # between the messages of the checker's report


def complaints(report: str, errors: str) -> tuple[str, ...]:
    """The messages of the checker about errors in a log, one line each; if the checker crashed, its last message."""
    _, _, messages = report.partition("WARNING -  ")
    messages = messages.removesuffix("\n").removesuffix("ERROR - FAILED")
    found = tuple(_short(message) for message in messages.split(SEPARATOR) if message.strip())
    return found or (f"the checker broke down: {errors.strip().splitlines()[-1] if errors.strip() else 'it says nothing'}",)


def _short(message: str) -> str:
    """A message without the log line and the state of the checker that follow it."""
    lines = message.strip().splitlines()
    tests = [line for line in lines[1:] if line.startswith("failed test:")]
    return " ".join([lines[0].rstrip(":"), *tests])
