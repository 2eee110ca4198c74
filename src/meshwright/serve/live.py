"""The present state of one run. Each refresh reads only what is new in its folder."""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import MeshwrightError
from meshwright.ledger import own_plan
from meshwright.plan.plan import Plan
from meshwright.record.entries import ENDS, LONGEST_S, SLOW_AFTER, Event
from meshwright.record.header import RUNNING, RunHeader, read_header
from meshwright.record.lines import object_in, one_line
from meshwright.serve.files import check_plain, touched_s
from meshwright.serve.steps import PART_FIELDS, Steps
from meshwright.serve.tail import Tail

LOOK_S = 0.25  # between two reads of a folder, however many clients ask
HEADER_BYTES = 1 << 20  # a header that meshwright writes is shorter
PLAN_BYTES = 64 << 20
RANKS_BYTES = 16 << 20
MAX_EVENTS = 20_000  # kept in memory; of a run that has more, the newest are shown
MAX_DAMAGE = 100  # damaged places that are named; the others are counted
RECENT = 200  # steps that step time and parts of a running run are computed from
QUIET_S = 60.0  # plus ten steps: a run that wrote nothing for longer may be dead
STARTING_S = 600.0  # the same before the first step, when weights are initialised or read and kernels compiled


class LiveRun:
    """A run folder that is followed while it grows. `refresh` reads what is new; everything else gives the state of the last read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: RunHeader | None = None
        self.problem: MeshwrightError | None = None  # why the run cannot be shown
        self.plan: Plan | None = None
        self.plan_problem = ""
        self.rank_times: tuple[int, int, list[float]] | None = None  # step, how many steps the median is over, busy seconds by rank
        self.life = 0  # how often the steps file began again: a client that has an earlier one starts over
        self._steps_tail, self._events_tail = Tail(folder / "steps.jsonl"), Tail(folder / "events.jsonl")
        self._stamps: dict[str, tuple[int, int, int]] = {}
        self.looked_s = 0.0  # by the monotonic clock
        self._begin()

    def _begin(self) -> None:
        self.steps, self.events, self.num_events = Steps(), list[Event](), 0
        self.damage, self.num_damaged, self._num_damaged_steps = list[str](), 0, 0
        self.life += 1

    def refresh(self, patience_s: float = 0.0) -> None:
        """Read what is new in the folder, for a limited time, unless that was done a moment ago. Problems are kept, not raised."""
        if time.monotonic() - self.looked_s < LOOK_S:
            return
        try:
            self._read_small_files()
            self.problem = None
            until_s = time.monotonic() + patience_s
            self._read_lines()
            while self.share_read < 1 and time.monotonic() < until_s:
                self._read_lines()
            self.problem = self._unreadable()
        except MeshwrightError as error:
            self.header, self.problem = None, error
        except OSError as error:
            why = "a link is in the place of a file" if error.errno == errno.ELOOP else error.strerror or error
            self.header, self.problem = None, MeshwrightError(f"cannot be read: {why}", where=str(error.filename or self.folder))
        self.looked_s = time.monotonic()

    def _read_small_files(self) -> None:
        header_changed = self._has_changed("run.json", HEADER_BYTES) or self.header is None
        if header_changed:
            self.header = read_header(self.folder)
        plan_changed = self._has_changed("plan.json", PLAN_BYTES)
        if self.header and (plan_changed or (header_changed and "plan.json" in self._stamps)):  # the header has the plan's digest
            self.plan, self.plan_problem = own_plan(self.folder, self.header)
        if self._has_changed("ranks.json", RANKS_BYTES):
            self.rank_times = _rank_times(self.folder / "ranks.json")

    def _has_changed(self, name: str, most_bytes: int) -> bool:
        """Whether a file has changed or disappeared since the last read."""
        try:
            state = check_plain(self.folder / name)
        except FileNotFoundError:
            return self._stamps.pop(name, None) is not None
        if state.st_size > most_bytes:
            raise MeshwrightError(f"{name} holds {state.st_size:,} bytes: meshwright did not write that", where=str(self.folder / name))
        stamp = (state.st_ino, state.st_mtime_ns, state.st_size)
        changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return changed

    def _unreadable(self) -> MeshwrightError | None:
        """Why no step can be read of a run that has done some; None for an undamaged run, also if it ended before its first step."""
        tail = self._steps_tail
        if len(self.steps) or self.share_read < 1:
            return None
        what = ""
        if self._num_damaged_steps:
            what = f"no step can be read: {next((line for line in self.damage if line.startswith(tail.path.name)), tail.path.name)}"
        elif self.has_ended and not tail.is_there:
            what = "steps.jsonl is missing"
        elif self.has_ended and tail.size:
            what = "steps.jsonl holds no whole line"
        return MeshwrightError(what, where=str(tail.path)) if what else None

    def _read_lines(self) -> None:
        anew, lines = self._steps_tail.read()
        if anew:
            self._begin()
            self._events_tail = Tail(self.folder / "events.jsonl")
        before = self.num_damaged
        self._take(lines, self._steps_tail, self.steps.add)
        self._num_damaged_steps += self.num_damaged - before
        anew, lines = self._events_tail.read()
        if anew:
            self.events, self.num_events = [], 0
        self._take(lines, self._events_tail, self._add_event)

    def _take(self, lines: list[bytes], tail: Tail, add: Callable[[bytes], None]) -> None:
        first = tail.num_lines - len(lines) + 1
        for number, line in enumerate(lines, start=first):
            try:
                if line.strip():
                    add(line)
            except (ValueError, MeshwrightError) as error:
                self.num_damaged += 1
                if len(self.damage) < MAX_DAMAGE:
                    self.damage.append(f"{tail.path.name} line {number}: {one_line(error)}"[:300])

    def _add_event(self, line: bytes) -> None:
        self.events.append(Event.from_json(object_in(line)))
        self.num_events += 1
        if len(self.events) > MAX_EVENTS:
            del self.events[: MAX_EVENTS // 2]

    @property
    def share_read(self) -> float:
        """The share of the steps file that has been read: below 1 only for a moment after a long run is opened."""
        return self._steps_tail.share_read if self._steps_tail.is_behind else 1.0

    @property
    def status(self) -> str:
        """The status in the header; `damaged` if there is no header or no readable step; `quiet` for a run that no longer writes."""
        if self.header is None or self.problem is not None:
            return "damaged"
        return "quiet" if self.header.status == RUNNING and self.quiet_s > self.patience_s else self.header.status

    @property
    def has_ended(self) -> bool:
        """Whether the header says that the run is over, successfully or not."""
        return self.header is not None and self.header.status != RUNNING

    @property
    def num_done(self) -> int:
        """Steps done: the newest recorded step, or in a simulation of weeks its last step."""
        end = self.end_of_sample
        return end.step if end else int(self.steps.last("step")) if len(self.steps) else 0

    @property
    def touched(self) -> float:
        """When the folder was last written to, in seconds of the system clock; 0 if unknown."""
        return touched_s(self.folder)

    @property
    def quiet_s(self) -> float:
        """Seconds since the folder was last written to."""
        return max(time.time() - self.touched, 0.0)

    @property
    def patience_s(self) -> float:
        """For how many seconds a healthy run may write nothing: it also starts, evaluates and saves."""
        longest_s = float(np.max(self.steps.column("step_s", -RECENT), initial=0.0))
        between_s = max((between_steps_s(event) for event in self.events[-RECENT:]), default=0.0)
        return max(QUIET_S, 10 * longest_s, 3 * between_s) if len(self.steps) else STARTING_S

    @property
    def first_counted(self) -> int:
        """Row of the first step that counts for step time and parts: recent steps while a run is running, all steps after its end."""
        return 0 if self.has_ended else max(len(self.steps) - RECENT, 0)

    @property
    def recent_step_s(self) -> float:
        """Median seconds of the steady steps since `first_counted`; nan before the first step."""
        steady = self._steady()
        return float(np.median(self.steps.column("step_s", self.first_counted)[steady])) if steady.any() else math.nan

    @property
    def recent_tokens_per_s(self) -> float:
        """Tokens per second of the steady steps since `first_counted`; nan if no step or no sequence length is known."""
        length = self.header.sequence_length if self.header else None
        steady = self._steady()[1:]
        step, samples, step_s = (self.steps.column(name, self.first_counted) for name in ("step", "samples", "step_s"))
        took_s = float(np.sum(step_s[1:][steady]))
        return float(np.sum((np.diff(samples) / np.diff(step))[steady])) * length / took_s if length and took_s > 0 else math.nan

    @property
    def recent_parts_s(self) -> dict[str, float]:
        """Mean seconds of every part over the steady steps since `first_counted`; a part that no step names is absent."""
        steady = self._steady()
        columns = {name.removesuffix("_s"): self.steps.column(name, self.first_counted)[steady] for name in PART_FIELDS}
        return {part: float(np.nanmean(column)) for part, column in columns.items() if not np.isnan(column).all()}

    @property
    def num_steady(self) -> int:
        """The number of steady steps, from which step time and parts are computed as in a report."""
        return int(self._steady().sum())

    def _steady(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the steps since `first_counted` are steady (they follow another step directly); all of them if none is."""
        step = self.steps.column("step", self.first_counted)
        before = [event.step for event in self.events if event.kind in SLOW_AFTER]
        steady = ~np.isin(step - 1, before)
        if len(self.steps) == len(step):
            steady[:1] = False
        return np.asarray(steady if steady.any() else np.ones(len(step), dtype=bool))

    @property
    def busy_s(self) -> float:
        """Seconds of steps, evaluations and stalls by saves so far; in a simulated run, simulated seconds."""
        if self.end_of_sample is not None:
            return self.end_of_sample.time_s
        return self.steps.total_s + sum(between_steps_s(event) for event in self.events)

    @property
    def end_of_sample(self) -> Event | None:
        """The end event of a simulation of weeks, which records only a sample of its millions of steps; None for any other run."""
        ends = (event for event in reversed(self.events) if event.kind in ENDS)
        end = next(ends, None) if self.header is not None and self.header.kind == "simulated" and len(self.steps) else None
        return end if end is not None and end.step > self.steps.last("step") else None

    @property
    def slow_ranks(self) -> dict[int, Event]:
        """The ranks that are slow now, with the event that named them."""
        slow: dict[int, Event] = {}
        for event in self.events:
            rank = event.detail.get("rank")
            if isinstance(rank, int) and event.kind == "slow_rank":
                slow[rank] = event
            elif isinstance(rank, int) and event.kind == "recovered_rank":
                slow.pop(rank, None)
        return slow

    @property
    def num_slow_links(self) -> int:
        """How many exchanges are slow now because of a link."""
        slow: set[str] = set()
        for event in self.events:
            key = str((event.detail.get("axis"), event.detail.get("groups")))
            if event.kind == "slow_link":
                slow.add(key)
            elif event.kind == "recovered_link":
                slow.discard(key)
        return len(slow)

    @property
    def last_evaluation(self) -> float | None:
        """Loss of the newest evaluation that has a loss."""
        losses = (number_in(event.detail.get("loss")) for event in reversed(self.events) if event.kind == "evaluation")
        return next((loss for loss in losses if loss is not None), None)

    @property
    def written(self) -> str | None:
        """When the folder was last written to, UTC, ISO 8601; None if the time is not a valid date."""
        try:
            return datetime.fromtimestamp(self.touched, UTC).isoformat(timespec="seconds")
        except (OverflowError, ValueError, OSError):
            return None


def between_steps_s(event: Event) -> float:
    """Seconds for which an event interrupted training: an evaluation, or the stall of a save."""
    seconds = number_in(event.detail.get({"evaluation": "seconds", "checkpoint": "stall_s"}.get(event.kind, "")))
    return seconds if seconds is not None and 0 < seconds <= LONGEST_S else 0.0


def number_in(value: Any) -> float | None:
    """A value from a file as a finite number, or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def _rank_times(path: Path) -> tuple[int, int, list[float]] | None:
    """Every rank's busy seconds, if the run writes them; None if the file contains something else."""
    try:
        entry = json.loads(path.read_bytes())
        busy_s = [float(value) for value in entry["busy_s"]]
        return (int(entry["step"]), int(entry["num_steps"]), busy_s) if all(map(math.isfinite, busy_s)) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
