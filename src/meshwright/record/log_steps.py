"""Step times of an MLPerf log, read in the best way that it allows.

`step_times` reads, in this order of preference,

1. a timer for every step (`tracked_stats` with `train_step_time` or `train_step_timing`, lines one step apart);
2. the wall clock between progress lines that are several steps apart;
3. the wall clock from the start of a block to its evaluation, divided by the block's steps;
4. the wall clock between lines with a loss (`train_loss`), if evaluations are not timed;
5. the wall clock of a block with its evaluation, if they cannot be separated;
6. the throughput that the log states for its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from meshwright.errors import InputError
from meshwright.record.mllog import LOSSES, RESUMED, Log, seconds_between, timer_s
from meshwright.record.mllog_lines import LogEvent, number
from meshwright.record.step_times import StepTimes

TIMER_FACTOR = 2.0  # if a timer differs from the wall clock by more than this factor, it measures something else, or is not in seconds
TIMERS = "timer of every step"
WITH_EVALUATION = "wall clock of a block and its evaluation / the block's steps"
FROM_LOSSES = "wall clock between lines with a loss"


@dataclass(frozen=True, slots=True)
class _Interval:
    """Seconds between two neighbouring marks of a block, and the steps between them."""

    seconds: float
    num_steps: float
    is_first: bool
    timer_s: float | None  # the log's own timer for the step that ends the interval
    last_step: float  # number of the step that ends it, from 1

    @property
    def step_s(self) -> float:
        return self.seconds / self.num_steps

    @property
    def is_runs_first(self) -> bool:
        """Whether it is exactly the first step of the run."""
        return self.last_step == self.num_steps == 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Training from a start to the evaluation that ends it."""

    seconds: float
    num_steps: float
    last_step: float  # number of its last step, from 1
    is_with_evaluation: bool  # the log does not say when the evaluation began, so the stretch includes it


def step_times(log: Log) -> StepTimes:
    """Seconds of the run's steps, read in the best way that the log allows.

    If a round logs its timer one step late (v6.0), the mark of the first step moves by one; this does not change the median.
    """
    found = next((steps for way in WAYS if (steps := way(log)) is not None), None)
    if found is None:
        last = log.events[-1]
        raise InputError(
            "the log holds no whole step: neither progress lines nor a block with its evaluation",
            where=f"{log.path}: ends at line {last.line} ({last.key})",
            fix="use a log that reaches its first evaluation",
        )
    return found


def _by_progress(log: Log) -> StepTimes | None:
    intervals = list(_intervals(log, log.progress))
    timed = [i for i in intervals if i.timer_s is not None and i.timer_s > 0]
    if timed and np.median([i.num_steps for i in intervals]) == 1 and _are_seconds(timed):
        first_s = next((i.timer_s for i in timed if i.is_runs_first and i.timer_s), math.nan)
        return _steps([(i.timer_s or 0.0, i.is_first, 1.0, i.last_step) for i in timed], TIMERS, first_s)
    return _by_wall(intervals, "wall clock between progress lines")


def _are_seconds(timed: Sequence[_Interval]) -> bool:
    ratios = [(i.timer_s or 0.0) / i.step_s for i in timed if i.seconds > 0]
    return not ratios or 1 / TIMER_FACTOR < median(ratios) < TIMER_FACTOR


def _by_wall(intervals: Sequence[_Interval], method: str) -> StepTimes | None:
    whole = [i for i in intervals if i.seconds > 0]
    if all(i.is_first for i in whole):
        return None
    first_s = next((i.seconds for i in whole if i.is_runs_first), math.nan)
    return _steps([(i.step_s, i.is_first, i.num_steps, i.last_step) for i in whole], method, first_s)


def _by_blocks(log: Log) -> StepTimes | None:
    return _of_blocks([one for one in stretches(log) if not one.is_with_evaluation], "wall clock of a block / its steps")


def _by_blocks_with_evaluations(log: Log) -> StepTimes | None:
    return _of_blocks(list(stretches(log)), WITH_EVALUATION)


def _of_blocks(blocks: Sequence[Stretch], method: str) -> StepTimes | None:
    # The first block includes the setup of the first evaluation, so it is treated like a first step.
    found = [(one.seconds / one.num_steps, i == 0, one.num_steps, one.last_step) for i, one in enumerate(blocks)]
    is_one_step = bool(blocks) and blocks[0].num_steps == blocks[0].last_step == 1 and not blocks[0].is_with_evaluation
    return _steps(found, method, blocks[0].seconds if is_one_step else math.nan) if found else None


def _by_losses(log: Log) -> StepTimes | None:
    # A line stands for several steps, and only one of them is the first after an evaluation: only the run's first interval is marked.
    found = list(_intervals(log, [event for event in log.events if event.key in LOSSES]))
    return _by_wall([replace(one, is_first=i == 0) for i, one in enumerate(found)], FROM_LOSSES)


def _by_throughput(log: Log) -> StepTimes | None:
    """Step times from the throughput that the log states for its blocks; None if steps of that length do not fit into the run."""
    values = [event.value for event in log.events if event.key == "tracked_stats" and isinstance(event.value, dict)]
    stated = [rate for value in values if (rate := number(value.get("throughput"))) and rate > 0]
    seconds = [log.global_batch_size / rate for rate in stated]
    try:
        fits = bool(seconds) and log.num_steps * median(seconds) < log.time_to_train_s
    except InputError:
        return None
    if not fits:
        return None
    is_first = np.arange(len(seconds)) == 0
    return StepTimes(np.array(seconds, dtype=np.float64), is_first, "throughput that the log states")


WAYS: tuple[Callable[[Log], StepTimes | None], ...] = (
    _by_progress,
    _by_blocks,
    _by_losses,
    _by_blocks_with_evaluations,
    _by_throughput,
)


def _steps(found: Sequence[tuple[float, bool, float, float]], method: str, first_s: float) -> StepTimes:
    seconds, is_first, each, last = (np.array(column) for column in zip(*found, strict=True))
    return StepTimes(seconds, is_first, method, first_s, each, last)


def _intervals(log: Log, lines: Sequence[LogEvent]) -> Iterator[_Interval]:
    """The intervals that end with one of `lines`; the first of a block begins with the block, or when the evaluation before it ends."""
    ends = {id(event) for event in lines}
    opened, closed = _evaluation_ends(log)
    before: LogEvent | None = None
    done = 0.0  # samples so far; in some rounds block_start has other values under the same name
    for event in log.events:
        if event.key in ("block_start", "run_start"):
            before = event
        elif event.key in ("block_stop", "run_stop"):
            before = None
        if id(event) in opened:
            before, done = None, max(done, opened[id(event)] or 0.0)
        if id(event) in closed:
            before = event
        elif before is not None and id(event) in ends and (samples := log.samples_at(event)) is not None and samples > done:
            num_steps = (samples - done) / log.global_batch_size
            is_first = id(before) not in ends
            logged_s = timer_s(event) if event.key == "tracked_stats" else None
            yield _Interval(seconds_between(before, event), num_steps, is_first, logged_s, samples / log.global_batch_size)
            before, done = event, samples


def _evaluation_ends(log: Log) -> tuple[dict[int, float | None], set[int]]:
    """The first line of each evaluation, with the samples before it, and the last line of each."""
    opened = {id(one.lines[0]): log.samples_of(one) for one in log.logged_evaluations}
    return opened, {id(one.lines[-1]) for one in log.logged_evaluations if one.is_finished}


def stretches(log: Log) -> Iterator[Stretch]:
    """The stretches of training: each from the start of a block, or the end of the evaluation before it, to the evaluation that ends it.

    Blocks without an evaluation between them are one stretch. If the start of an evaluation is not logged, the stretch includes it.
    """
    opened, closed = _evaluation_ends(log)
    timed = {id(one.lines[0]) for one in log.logged_evaluations if one.start is not None}
    begin: LogEvent | None = None
    done, is_known = 0.0, True  # whether `done` is known at the start of the stretch
    for event in log.events:
        if event.key == RESUMED:  # steps before the interruption may be repeated
            is_known = False
        elif event.key == "run_start" or (event.key == "block_start" and (begin is None or begin.key != "block_start")):
            begin = event
        if id(event) in opened:
            samples = opened[id(event)]
            if begin and is_known and samples is not None and samples > done and event.time_ms > begin.time_ms:
                batch = log.global_batch_size
                yield Stretch(seconds_between(begin, event), (samples - done) / batch, samples / batch, id(event) not in timed)
            begin, done, is_known = None, max(done, samples or 0.0), samples is not None
        if id(event) in closed:
            begin = event
