"""What is wrong with a log: lines that are unreadable, missing, duplicate or out of order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from meshwright.errors import InputError
from meshwright.record.mllog import RESUMED, Log
from meshwright.record.mllog_lines import MARKER, SAME_MS, LogEvent


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is wrong with the log of a finished run, and the line where it shows.

    Submitters log their blocks and steps differently: what is missing there is a remark, not damage.
    """

    line: int
    what: str
    is_damage: bool = True


MARKS = ("run_start", "block_start", "eval_start", "eval_stop", "run_stop")
STARTS = {"block_stop": "block_start", "eval_stop": "eval_start"}  # by the mark that ends what they begin
ONCE = ("run_start", "run_stop")
SAME_SAMPLES = 0.01  # a total that differs by less from that of the last evaluation is rounded, or one step behind


def flaws(log: Log) -> tuple[Flaw, ...]:
    """What is wrong with a log, by line; nothing for the complete log of a finished run.

    A missing entry may be on a line that cannot be read. Then only the unreadable lines are reported, with entries that are out of order or
    duplicate.
    """
    found = [*_out_of_order(log), *_not_once(log)]
    if log.damaged:
        found += [Flaw(one.line, f"a damaged {MARKER} line: {one.why}") for one in log.damaged]
    else:
        found += [*_unpaired(log), *_counting_back(log), *_skipped_steps(log), *_another_total(log)]
    if log.again:
        found.append(Flaw(log.again[0], f"lines that stand further up are printed again and read once: {len(log.again)}", is_damage=False))
    if log.unordered_line:
        found.append(Flaw(log.unordered_line, "lines are not in the order of their clock: they are read in that order", is_damage=False))
    if log.empty_line:
        found.append(Flaw(log.empty_line, "zero bytes"))
    return tuple(sorted(found, key=lambda flaw: flaw.line))


def _out_of_order(log: Log) -> Iterator[Flaw]:
    """Marks whose time is earlier than that of the marks above them.

    Lines of several processes are mixed, so only one process's marks count.
    """
    before: LogEvent | None = None
    for event in log.events:
        if event.key in MARKS:
            if before is not None and event.time_ms < before.time_ms - SAME_MS:
                yield Flaw(
                    event.line, f"{event.key} is {(before.time_ms - event.time_ms) / 1e3:.3f} s before {before.key} of line {before.line}"
                )
            before = event


def _not_once(log: Log) -> Iterator[Flaw]:
    """Starts and ends of the run that occur again, and not merely from another process."""
    seen: dict[str, LogEvent] = {}
    for event in log.events:
        if event.key in ONCE:
            first = seen.setdefault(event.key, event)
            if abs(event.time_ms - first.time_ms) > SAME_MS:
                yield Flaw(event.line, f"a second {event.key}; the first is line {first.line}")


def _unpaired(log: Log) -> Iterator[Flaw]:
    """Ends without a start, and starts that are followed by another start. A run may end within a block, and evaluate within one.

    If a log never has starts of a kind, or never has ends, it was written this way, and nothing is missing.
    """
    paired = {stop: start for stop, start in STARTS.items() if log.first(stop) and log.first(start)}
    opened: dict[str, int] = {}
    for event in log.events:
        if event.key == RESUMED:
            opened.clear()
        elif event.key in paired.values():
            if event.key in opened:
                what = f"{event.key} again, though that of line {opened[event.key]} has no end"
                yield Flaw(event.line, what, is_damage=event.key == "eval_start")
            opened[event.key] = event.line
        elif event.key in paired and opened.pop(paired[event.key], None) is None:
            yield Flaw(event.line, f"{event.key} without {paired[event.key]}", is_damage=event.key == "eval_stop")
        elif event.key == "run_stop" and log.first("run_start") is None:
            yield Flaw(event.line, "run_stop without run_start")


def _counting_back(log: Log) -> Iterator[Flaw]:
    """Evaluations after fewer samples than the one before."""
    resumed = [event.line for event in log.events if event.key == RESUMED]
    before: LogEvent | None = None
    for one in log.logged_evaluations:
        event = next((event for event in one.lines if event.count is not None and event.key != "block_stop"), None)
        if event is None or event.count is None:
            continue
        is_again = before is not None and any(before.line < line < event.line for line in resumed)
        if before and before.count is not None and before.counter == event.counter and event.count <= before.count and not is_again:
            yield Flaw(event.line, f"an evaluation after {event.count:g}, when one after {before.count:g} is on line {before.line}")
        before = event


def _another_total(log: Log) -> Iterator[Flaw]:
    """A number of samples at the end of the run that is not that of the last evaluation."""
    try:
        samples, total = log.samples_to_target, log.total_samples
    except InputError:
        return
    stop = log.first("run_stop")
    if total is not None and stop is not None and abs(total - samples) > SAME_SAMPLES * samples:
        yield Flaw(stop.line, f"the run ends after {total:,.0f} samples, its last evaluation is after {samples:,.0f}", is_damage=False)


def _skipped_steps(log: Log) -> Iterator[Flaw]:
    """Steps without a line, in a log that has a line for every step."""
    try:
        per_step = log.global_batch_size
        marks = list(_counted(log))
    except InputError:
        return
    apart = [after - before for (_, _, before), (_, _, after) in pairwise(marks)]
    if not apart or median(apart) != per_step:
        return
    for ((line, count, _), (next_line, _, _)), gap in zip(pairwise(marks), apart, strict=True):
        if gap > per_step:
            what = f"steps without a line of their own since line {line} (after {count:g}): {gap / per_step - 1:.0f}"
            yield Flaw(next_line, what, is_damage=False)


def _counted(log: Log) -> Iterator[tuple[int, float, float]]:
    """Line, counter and samples of the logged steps, each once; a resumed run repeats some."""
    done = 0.0
    for event in log.progress:
        samples = log.samples_at(event)
        if samples is not None and event.count is not None and samples > done:
            done = samples
            yield event.line, event.count, samples
