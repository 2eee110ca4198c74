"""A run's folder -> what its accelerators did from when to when: spans that leave no paid second out and count none twice.

Steps have a length and no hour; events have an hour. So steps are laid end to end, and every event about something between steps
(an evaluation, a save, a stop) pulls the clock to its hour: what lies between is a gap. A clock that is ahead of an event is not put back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from meshwright.errors import InputError
from meshwright.files import MOST_LINES_BYTES, read_bytes
from meshwright.ledger.rate import Rate
from meshwright.record.entries import ENDS, LONGEST_S, MEAN_PARTS, OLD_STEP_FIELD, PARTS, Event, StepRecord
from meshwright.record.lines import object_in
from meshwright.record.run import Run

SIMULATED_WEEKS = "checkpoint_interval_s"  # a start event with this field marks simulated weeks, whose recorded steps are a sample
RESUMED = "resumed"
MEMBERSHIP = "membership"
RELEASES = ("scaled", "planned")  # reasons of a membership after which replicas that left are no longer paid for
SPARES = "spare nodes"
CHANGE = "change of replicas"
MISSING = "lost replicas"  # paid for until they are back
BESIDE = (SPARES, MISSING)  # accelerators that are paid for beside those that train
ROUNDED_S = 0.005  # events of simulated weeks give their times to the millisecond


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of the run. `uses_s` are seconds by part of a step, or by what else went on; they add up to the stretch."""

    start_s: float  # since the run's first start
    end_s: float
    what: str
    uses_s: Mapping[str, float]
    num_gpus: int
    rate: Rate | None = None  # that was recorded when this life of the run began
    first_step: int | None = None
    last_step: int | None = None
    is_lost: bool = False  # work that was done again later
    metered_j: float | None = None  # of all accelerators, where every step of the span has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The run from one start, or one change of its replicas, to the next; or to its end."""

    start_s: float  # no later than the end of the life before: the time between is paid for
    num_gpus: int
    rate: Rate | None
    num_missing: int = 0  # accelerators of replicas that were lost
    steps: tuple[StepRecord, ...] = ()
    lost: frozenset[int] = field(default=frozenset())  # steps of it that a later life did again
    events: tuple[Event, ...] = ()


def spans_of(run: Run) -> list[Span]:
    """The run's spans in order. Between the end of a life and the next start nothing is paid for.

    Events before the run's start are left out; `unbelievable` counts them.
    """
    run = replace(run, events=tuple(filter(_is_event, run.events)))
    if _tells_of_weeks(run):
        return list(_weeks(run))
    spans: list[Span] = []
    for life in lives(run):
        begins_s = max(life.start_s, max((span.end_s for span in spans), default=0.0))
        found = _Walk(life, begins_s).spans()
        spans += found
        if life.num_missing and found:
            spans.append(_missing(life, begins_s, found[-1].end_s))
    return spans


def _missing(life: Life, start_s: float, end_s: float) -> Span:
    """What replicas that were lost cost until they are back."""
    uses_s = {"recovering": end_s - start_s}
    return Span(start_s=start_s, end_s=end_s, what=MISSING, uses_s=uses_s, num_gpus=life.num_missing, rate=life.rate)


def unbelievable(run: Run) -> int:
    """Events whose times no run can have: what a damaged file says of them is not paid for. Steps of that kind are not read at all."""
    return sum(not _is_event(event) for event in run.events)


def _is_event(event: Event) -> bool:
    return 0 <= event.time_s <= LONGEST_S


def lives(run: Run) -> list[Life]:
    """The run's lives in order, each with the steps it did: kept ones, and those that it or a later life had to do again."""
    groups = _events_by_life(run.events)
    resumed_after = [group[0].step for group in groups[1:]]
    steps = _steps_by_life(run.records, list(abandoned(run.folder)), resumed_after)
    kept = {id(record) for record in run.records}
    made: list[Life] = []
    for events, done in zip(groups, steps, strict=True):
        lost = frozenset(record.step for record in done if id(record) not in kept)
        made.append(replace(_begun(events, made[-1] if made else None, run), steps=tuple(done), lost=lost, events=tuple(events)))
    return made


def _begun(events: Sequence[Event], before: Life | None, run: Run) -> Life:
    """A life without its steps, from the event that it begins with."""
    first = events[0] if events else None
    detail = first.detail if first else {}
    num_gpus = _count(detail.get("num_ranks"), 0) or run.header.num_ranks
    if before is not None and first is not None and first.kind == MEMBERSHIP:
        paid = num_gpus if detail.get("reason") in RELEASES else max(num_gpus, before.num_gpus + before.num_missing)
        return Life(start_s=0.0, num_gpus=num_gpus, rate=before.rate, num_missing=paid - num_gpus)
    is_stop = before is not None and first is not None and _recovery(events) is None
    start_s = max(first.time_s - _seconds(detail.get("starting_s")), 0.0) if is_stop and first else 0.0
    return Life(start_s=start_s, num_gpus=num_gpus, rate=Rate.from_json(detail.get("price")))


def _recovery(events: Iterable[Event]) -> Event | None:
    """The event that says how the run went on by itself after a fault, if a life began with that."""
    return next((event for event in events if event.kind == "incident" and "down_s" in event.detail), None)


def _events_by_life(events: Iterable[Event]) -> list[list[Event]]:
    groups: list[list[Event]] = [[]]
    for event in events:
        if event.kind == RESUMED or (event.kind == MEMBERSHIP and _count(event.detail.get("generation"), 0)):
            groups.append([])
        groups[-1].append(event)
    return groups


def _steps_by_life(records: Sequence[StepRecord], cut: list[StepRecord], resumed_after: list[int]) -> list[list[StepRecord]]:
    """The steps of each life, from the last life backwards: before a resume there were the steps that it kept and those that it cut off."""
    cuts = _cuts(cut, resumed_after)
    standing, found = list(records), []
    for after, gone in zip(reversed(resumed_after), reversed(cuts), strict=True):
        found.append([record for record in standing if record.step > after])
        standing = [record for record in standing if record.step <= after] + gone
    found.append(standing)
    return found[::-1]


def _cuts(cut: list[StepRecord], resumed_after: list[int]) -> list[list[StepRecord]]:
    """The abandoned steps by the resume that cut them off: each cut is a row of numbers from behind its resume on."""
    rows: list[list[StepRecord]] = [[] for _ in resumed_after]
    rest = iter(cut)
    record = next(rest, None)
    for row, after in zip(rows, resumed_after, strict=True):
        while record is not None and record.step == (row[-1].step if row else after) + 1:
            row.append(record)
            record = next(rest, None)
    if record is not None and rows:  # rows that damage has torn: all belong to some life, and the last resume is as good as any
        rows[-1] += [record, *rest]
    return rows


def abandoned(folder: Path) -> Iterator[StepRecord]:
    """The steps that resumed runs cut off, as far as they can be read; they were paid for."""
    try:
        lines = read_bytes(folder / "abandoned.jsonl", MOST_LINES_BYTES).splitlines()
    except OSError:
        return
    for line in lines:
        try:
            entry = object_in(line)
            if "step_s" in entry or OLD_STEP_FIELD in entry:
                yield StepRecord.from_json(entry)
        except (ValueError, InputError):
            continue


@dataclass(frozen=True, slots=True)
class _Mark:
    """Something that took time between two steps."""

    after_step: int
    what: str
    use: str
    seconds: float  # that it took; infinite: all since the last thing that is known
    end_s: float | None  # its hour; None: right behind the step


def _marks(events: Iterable[Event]) -> Iterator[_Mark]:
    for event in events:
        detail, took_s = event.detail, _seconds(event.detail.get("seconds"))
        if event.kind in ("start", RESUMED):
            yield _Mark(event.step, "start", "starting", math.inf, event.time_s)
        elif event.kind == MEMBERSHIP and _count(detail.get("generation"), 0):
            took_s = _seconds(detail["change_s"]) if "change_s" in detail else math.inf
            yield _Mark(event.step, CHANGE, "recovering", took_s, event.time_s)
        elif event.kind == "evaluation":
            yield _Mark(event.step, "evaluation", "evaluation", took_s, event.time_s)
        elif event.kind in ("checkpoint", "checkpoint_failed"):
            saved = _count(detail.get("saved_step"), event.step)
            yield _Mark(saved, "checkpoint", "checkpoint", _seconds(detail.get("stall_s")), event.time_s if saved == event.step else None)
        elif event.kind == "nan" or (event.kind == "stall" and not took_s):
            yield _Mark(event.step, "stall" if event.kind == "stall" else "a step that failed", "stalled", math.inf, event.time_s)
        elif event.kind == "fault":
            yield _Mark(event.step, "fault", "recovering", 0.0, event.time_s)
        elif event.kind == "restart":
            yield _Mark(event.step, "restart", "recovering", math.inf, event.time_s)


class _Walk:
    """A clock that goes through one life of the run."""

    def __init__(self, life: Life, now_s: float) -> None:
        self.life, self.now_s = life, now_s
        self.stalls = {event.step: _seconds(event.detail.get("seconds")) for event in life.events if event.kind == "stall"}
        self.made: list[Span] = []

    def spans(self) -> list[Span]:
        """All of the life."""
        marks = sorted(self._marks(), key=lambda mark: mark.after_step)
        done = 0
        for mark in marks:
            upto = done
            while upto < len(self.life.steps) and self.life.steps[upto].step <= mark.after_step:
                upto += 1
            self._steps(self.life.steps[done:upto])
            done = upto
            self._mark(mark)
        self._steps(self.life.steps[done:])
        self._gap(max((event.time_s for event in self.life.events), default=self.now_s))
        return self.made

    def _marks(self) -> Iterator[_Mark]:
        """What took time between steps. After a fault, all until the next step began is recovery, not a start."""
        recovery = _recovery(self.life.events)
        if recovery is not None:
            step_s = next((record.step_s for record in self.life.steps if record.step == recovery.step), 0.0)
            took_s = sum(_seconds(recovery.detail.get(name)) for name in ("noticed_after_s", "down_s"))
            yield _Mark(recovery.step - 1, "recovery", "recovering", took_s, recovery.time_s - step_s)
        yield from (mark for mark in _marks(self.life.events) if recovery is None or mark.what not in ("start", CHANGE))

    def _steps(self, steps: Sequence[StepRecord]) -> None:
        """Steps end to end; those that were done again, and those that a meter saw, are separate spans."""
        for _, alike in groupby(steps, key=lambda record: (record.step in self.life.lost, _metered_j(record) is None)):
            self._stretch(list(alike))

    def _stretch(self, steps: Sequence[StepRecord]) -> None:
        uses_s: dict[str, float] = {}
        for record in steps:
            for use, seconds in step_uses_s(record, self.stalls.get(record.step, 0.0)).items():
                uses_s[use] = uses_s.get(use, 0.0) + seconds
        self._add("steps", sum(record.step_s for record in steps), uses_s, steps)

    def _mark(self, mark: _Mark) -> None:
        took_s = mark.seconds
        if mark.end_s is not None and took_s < math.inf:
            self._gap(mark.end_s - took_s)
        elif mark.end_s is not None:
            took_s = mark.end_s - self.now_s
        self._add(mark.what, took_s, {mark.use: took_s})

    def _gap(self, until_s: float) -> None:
        took_s = until_s - self.now_s
        self._add("between steps", took_s, {"gap": took_s})

    def _add(self, what: str, took_s: float, uses_s: Mapping[str, float], steps: Sequence[StepRecord] = ()) -> None:
        """A span from now on; none where the clock is past its end."""
        if not took_s > 0:
            return
        scale = took_s / sum(uses_s.values())  # floats that were summed in another order: the span is the span
        metered = [joules for joules in map(_metered_j, steps) if joules is not None]
        self.made.append(
            Span(
                start_s=self.now_s,
                end_s=self.now_s + took_s,
                what=what,
                uses_s={use: seconds * scale for use, seconds in uses_s.items() if seconds > 0},
                num_gpus=self.life.num_gpus,
                rate=self.life.rate,
                first_step=steps[0].step if steps else None,
                last_step=steps[-1].step if steps else None,
                is_lost=bool(steps) and steps[0].step in self.life.lost,
                metered_j=sum(metered) if metered else None,
            )
        )
        self.now_s += took_s


def _metered_j(record: StepRecord) -> float | None:
    """Joules of all accelerators in a step, where a meter counted them."""
    joules = record.extra.get("energy_j", math.nan)
    return joules if 0 <= joules < math.inf else None


def step_uses_s(record: StepRecord, stall_s: float = 0.0) -> dict[str, float]:
    """Seconds of a step by part; what no part accounts for is `unaccounted`, and a simulated stall is taken out of the overhead it is in.

    Parts whose sum is longer than the step are shortened in proportion. A step without measured parts counts as compute.
    """
    parts_s = {part: record.parts_s[part] for part in PARTS if record.parts_s.get(part, 0.0) > 0}
    if not parts_s:
        return {"unmeasured": record.step_s}
    stalled_s = min(stall_s, parts_s.get("overhead", 0.0))
    if stalled_s > 0:
        parts_s["overhead"] -= stalled_s
        parts_s["stalled"] = stalled_s
    total_s = sum(parts_s.values())
    if total_s > record.step_s:
        return {part: seconds * record.step_s / total_s for part, seconds in parts_s.items()}
    return {**parts_s, "unaccounted": record.step_s - total_s}


def _tells_of_weeks(run: Run) -> bool:
    return run.header.kind == "simulated" and any(e.kind == "start" and SIMULATED_WEEKS in e.detail for e in run.events)


def _weeks(run: Run) -> Iterator[Span]:
    """Weeks from interruption to interruption: coming back, work and saves, work that was lost; and idle spares."""
    start = next(event for event in run.events if event.kind == "start")
    rate, work, now_s = Rate.from_json(start.detail.get("price")), _mean_shares(start) or _work_shares(run.records), 0.0
    for event in (event for event in run.events if event.kind in ("fault", *ENDS)):
        for what, took_s, is_lost in _between(event, max(event.time_s - now_s, 0.0)):
            shares = work if what == "steps" else {"checkpoint" if what == "checkpoint" else "recovering": 1.0}
            yield Span(
                start_s=now_s,
                end_s=now_s + took_s,
                what=what,
                uses_s={use: share * took_s for use, share in shares.items()},
                num_gpus=run.header.num_ranks,
                rate=rate,
                is_lost=is_lost,
            )
            now_s += took_s
    num_spares = _count(start.detail.get("num_spare_accelerators"), 0)
    if num_spares and now_s > 0:
        yield Span(start_s=0.0, end_s=now_s, what=SPARES, uses_s={"spare": now_s}, num_gpus=num_spares, rate=rate)


def _between(event: Event, passed_s: float) -> Iterator[tuple[str, float, bool]]:
    """What the time since the interruption before went into, in order, and whether it was lost; an event that does not say is all work."""
    stated_s = [_seconds(event.detail.get(name)) for name in ("work_s", "checkpoint_s", "lost_s")]
    if "work_s" not in event.detail:
        stated_s[0] = passed_s
    is_all = passed_s - sum(stated_s) < ROUNDED_S
    work_s, saving_s, lost_s = (seconds * passed_s / sum(stated_s) if is_all and any(stated_s) else seconds for seconds in stated_s)
    back_s = passed_s - work_s - saving_s - lost_s
    for what, took_s, is_lost in (
        ("restart", back_s, False), ("steps", work_s, False), ("checkpoint", saving_s, False), ("steps", lost_s, True),
    ):  # fmt: skip
        if took_s > 0:
            yield what, took_s, is_lost


def _mean_shares(start: Event) -> dict[str, float]:
    """Shares of work by part of the mean step, where the start of simulated weeks states it: a few sampled steps have too many stalls or
    too few."""
    stated = start.detail.get(MEAN_PARTS)
    parts_s = {part: _seconds(stated.get(part)) for part in PARTS} if isinstance(stated, Mapping) else {}
    total_s = sum(parts_s.values())
    return {part: seconds / total_s for part, seconds in parts_s.items() if seconds} if total_s else {}


def _work_shares(records: Sequence[StepRecord]) -> dict[str, float]:
    """Shares of work by part, of the sampled steps without the first, which is not a usual one."""
    sample = records[1:] or records
    total_s = sum(record.step_s for record in sample)
    if not total_s:
        return {"unmeasured": 1.0}
    uses_s: dict[str, float] = {}
    for record in sample:
        for use, seconds in step_uses_s(record).items():
            uses_s[use] = uses_s.get(use, 0.0) + seconds
    return {use: seconds / total_s for use, seconds in uses_s.items()}


def _seconds(value: object) -> float:
    """A number of seconds that an event gives; 0 where it gives none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if 0 < value <= LONGEST_S else 0.0


def _count(value: object, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else otherwise
