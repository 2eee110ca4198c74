"""The watchdog: notices that ranks make no progress, says which rank waits for which, and ends the process.

The main thread notes what it does and waits for (`Marks`). A separate thread publishes these notes to the key-value store of the job every
second, over its own connection: one small message. Of the ranks that have made no progress for too long, one reads the notes of all ranks,
and the others ask for its verdict, so that a store with thousands of ranks is not asked for millions of notes. A rank is at fault
if it waits for no other rank and has exceeded its own time limit, or if it no longer reports. While the rank that all wait for is within
its limit (it saves, evaluates or compiles), no rank is ended. One rank writes the diagnosis, and all ranks end with `EXIT_HUNG`.

Notes that no rank has written, and notes that vanish, do not count: a diagnosis says that another process reaches the store.

A link that is cut closes no connection: processes beyond it fall silent all at once, and a question to the store gets no answer, not even
an error. So ranks that fall silent together, all ranks of their hosts, are reported as a cut link and not as ranks at fault; and a third
thread notices that the second one waits for the store, so that the ranks beyond the cut end as well.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

from meshwright.train.parallel.marks import Marks
from meshwright.train.sealed import Forged, SealedStore

EXIT_HUNG = 75  # sysexits' EX_TEMPFAIL: the input is not wrong, try again
BEAT_S = 1.0
STEPS_TO_LIMIT = 5.0  # of the 99th percentile step
NUM_STEP_TIMES = 500
NUM_FIRST_STEPS = 3  # compile and touch memory for the first time: once enough others are known they say nothing of a usual step
ENOUGH_STEPS = 10
STALL_S = 10.0  # a rank may make no progress for this time, unless its steps take longer
START_SILENCE_S = 30.0  # before the first step: reading a checkpoint and compiling may keep a process from reporting for a while
STORE_TIMEOUT_S = 5.0
POLL_SHARE = 0.4  # share of the limit from which on the other ranks are read
DEAD_SHARE = 0.5  # share of the limit without a report after which a rank counts as stopped
DEAD_BEATS = 5  # and never after fewer reports than these, because a busy machine delays them
LEASE_BEATS = 3  # so long without a sign of the reader, and another rank reads in its place
READER, OVER = "reader", "over"  # the key that names the reader; what it holds once the run is ended
TOLD = "told"  # a key that is set once the diagnosis is written
WITNESS_BEATS = 3  # so long other ranks may take to write what they wait for
MOST_RANKS = 10**7
AXIS_NAMES = {"tp": "tensor-parallel", "cp": "context-parallel", "pp": "pipeline", "dp": "data-parallel", "ep": "expert-parallel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The last state that one rank reported, and whether it still reports."""

    rank: int
    beat: int
    step: int
    doing: str
    waits: tuple[str, str, tuple[int, ...]] | None  # collective, axis, ranks
    idle_s: float  # since its last mark
    limit_s: float  # how long it may be idle now
    at: str = ""  # line of code, once it is idle for long
    finished: bool = False
    alive: bool = True  # set by the reader
    host: str = ""  # the name of its machine

    @property
    def at_fault(self) -> bool:
        """Whether this rank blocks the others: it waits for no rank and has exceeded its time limit, or it no longer reports."""
        return not self.alive or self.finished or (self.waits is None and self.idle_s > self.limit_s)

    def holds_up(self, other: RankState) -> bool:
        """Whether `other` waits for this rank."""
        return other.waits is not None and self.rank in other.waits[2]

    @staticmethod
    def from_json(text: bytes | str) -> RankState:
        """The state that another rank published; ValueError if it is not valid."""
        entry = json.loads(text)
        try:
            waits = entry["waits"] and (str(entry["waits"][0]), str(entry["waits"][1]), unpacked(entry["waits"][2]))
            return RankState(**{**entry, "waits": waits})
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"no rank's state: {error}") from None


def packed(ranks: Sequence[int]) -> str | list[int]:
    """Ranks for a message: as first:stop:step where they are evenly spaced, so that a wait for all ranks is no longer than one for two."""
    step = ranks[1] - ranks[0] if len(ranks) > 2 else 0
    even = range(ranks[0], ranks[-1] + (1 if step > 0 else -1), step) if step else range(0)
    return f"{even.start}:{even.stop}:{even.step}" if len(even) == len(ranks) and list(even) == list(ranks) else list(ranks)


def unpacked(text: str | list[int]) -> tuple[int, ...]:
    """The ranks again; ValueError where it is not valid."""
    if not isinstance(text, str):
        return tuple(int(rank) for rank in text)
    found = range(*(int(part) for part in text.split(":")))
    if len(found) > MOST_RANKS:
        raise ValueError(f"{len(found)} ranks")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why the ranks hang: a sentence or two, the ranks at fault and those that wait."""

    text: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    step: int


def diagnose(states: Sequence[RankState], missing: Sequence[int] = (), place: Callable[[int], str] | None = None) -> Diagnosis | None:
    """Which ranks block the others; None while these are within their time limit. `missing` ranks never reported anything."""
    name = _namer(place)
    waiting = [state for state in states if state.waits is not None and not state.at_fault]
    at_fault = [state for state in states if state.at_fault]
    culprits = [state for state in at_fault if not state.finished or any(state.holds_up(other) for other in waiting)]
    step = max((state.step for state in states), default=0)
    if cut := _cut(states, culprits, missing):
        return Diagnosis(f"{cut}; {_waiting_for(culprits, waiting)}", (), tuple(state.rank for state in waiting), step)
    sentences = [f"{name(state.rank)} {_fault(state)}; {_waiters(state.rank, waiting)}" for state in culprits]
    sentences += [f"{name(rank)} has never reported; {_waiters(rank, waiting)}" for rank in missing]
    if not sentences:
        busy = any(state.waits is None and not state.finished for state in states)
        if busy or not waiting or any(state.idle_s <= state.limit_s for state in waiting):
            return None
        sentences = [_deadlock(waiting, name)]
    ranks = (*(state.rank for state in culprits), *missing)
    return Diagnosis(". ".join(sentences), ranks, tuple(state.rank for state in waiting), step)


def _namer(place: Callable[[int], str] | None) -> Callable[[int], str]:
    return lambda rank: f"rank {rank} ({place(rank)})" if place else f"rank {rank}"


def _cut(states: Sequence[RankState], culprits: Sequence[RankState], missing: Sequence[int]) -> str:
    """A sentence about a cut link, if all that is wrong is that whole hosts are silent; else nothing.

    One rank alone on its host may as well have been stopped. Processes that end close their connections, which ends the others at once.
    """
    hosts = {state.host for state in states}
    silent = [state for state in states if not state.alive]
    beyond = {state.host for state in silent}
    if missing or len(hosts) < 2 or "" in hosts or len(silent) < 2 or beyond == hosts or set(culprits) != set(silent):
        return ""
    if any(state.host in beyond for state in states if state.alive):
        return ""
    here, there = (_hosts(sorted(some)) for some in (hosts - beyond, beyond))
    who = _ranks([state.rank for state in silent])
    return (
        f"the link between {here} and {there} is cut, or {there} lost power: none of {who} there has reported since, "
        "and their connections are still open"
    )


def _waiting_for(culprits: Sequence[RankState], waiting: Sequence[RankState]) -> str:
    """Which ranks wait for some that are beyond a cut link."""
    direct = [state for state in waiting if any(one.holds_up(state) for one in culprits)]
    groups: dict[str, list[int]] = defaultdict(list)
    for state in direct:
        if state.waits:
            groups[_collective(state.waits)].append(state.rank)
    clauses = [f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {what}" for what, ranks in groups.items()]
    return ", ".join(clauses) or "no rank waits for them directly"


def _hosts(names: Sequence[str]) -> str:
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return f"host{'s' if len(names) > 1 else ''} {listed}"


def _fault(state: RankState) -> str:
    where = f" of step {state.step + 1}" if state.step else ""
    if state.finished:
        return "has ended its run"
    if not state.alive:
        last = f"in {_collective(state.waits)}" if state.waits else f"in {state.doing}"
        return f"has stopped: its process no longer reports; its last report was {last}{where}"
    line = f", at {state.at}" if state.at else ""
    return f"has not moved for {state.idle_s:.1f} s: it is in {state.doing}{where}{line}"


def _waiters(rank: int, waiting: Sequence[RankState]) -> str:
    """Which ranks wait for `rank`, by collective, and how many more wait for those."""
    groups: dict[str, list[int]] = defaultdict(list)
    for state in waiting:
        if state.waits and rank in state.waits[2]:
            groups[_collective(state.waits)].append(state.rank)
    clauses = [f"{_ranks(ranks)} {'waits' if len(ranks) == 1 else 'wait'} for it in {what}" for what, ranks in groups.items()]
    direct = {one for ranks in groups.values() for one in ranks}
    behind = [state.rank for state in waiting if state.rank not in direct]
    if behind and clauses:
        clauses.append(f"{_ranks(behind)} behind {'those' if len(direct) > 1 else 'that'}")
    return ", ".join(clauses) or "no rank waits for it directly"


def _deadlock(waiting: Sequence[RankState], name: Callable[[int], str]) -> str:
    """All ranks wait: in one collective, whose message was lost, or in different collectives, for each other."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for state in waiting:
        if state.waits:
            groups[_collective(state.waits), state.waits[2]].append(state.rank)
    idle_s = min(state.idle_s for state in waiting)
    if all(set(ranks) >= set(members) for (_, members), ranks in groups.items()):
        what = "; ".join(f"{_ranks(ranks)} in {collective}" for (collective, _), ranks in groups.items())
        return f"all ranks have waited for {idle_s:.1f} s, each group in one and the same collective, so the network lost a message: {what}"
    clauses = "; ".join(f"{_ranks(ranks)} in {what} with {_ranks(members)}" for (what, members), ranks in groups.items())
    return f"every rank has waited for {idle_s:.1f} s for another one: {clauses}"


def _collective(waits: tuple[str, str, tuple[int, ...]]) -> str:
    return f"the {AXIS_NAMES.get(waits[1], waits[1])} {waits[0]}"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


@dataclass(slots=True)
class Patience:
    """How long a rank may make no progress, and how long it has made none. Time is an argument, so that tests do not have to wait."""

    timeout_s: float
    start_allowance_s: float  # before the first step
    beat_s: float = BEAT_S
    start_silence_s: float = START_SILENCE_S  # before the first step, for a process that has stopped
    allowance: tuple[float, str] | None = None
    idle_s: float = 0.0
    step_times_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_STEP_TIMES))
    num_steps: int = 0
    _seen: tuple[int, float] = (-1, 0.0)  # moves, clock

    def limit_s(self) -> float:
        """Seconds without progress that are allowed: the timeout, or five slow steps, or a longer allowance."""
        start_s = 0.0 if self.step_times_s else self.start_allowance_s
        return max(self.usual_limit_s(), start_s, self.allowance[0] if self.allowance else 0.0)

    def usual_limit_s(self) -> float:
        """The same without an allowance: an allowance of a rank does not apply to a process that has stopped."""
        times_s = list(self.step_times_s)  # a copy, because the main thread appends to it
        if not times_s:
            return max(self.timeout_s, min(self.start_silence_s, self.start_allowance_s))
        if self.num_steps < NUM_STEP_TIMES and len(times_s) >= NUM_FIRST_STEPS + ENOUGH_STEPS:
            times_s = times_s[NUM_FIRST_STEPS:]
        times_s.sort(reverse=True)
        return max(self.timeout_s, STEPS_TO_LIMIT * times_s[len(times_s) // 100])

    def step(self, seconds: float) -> None:
        """Note how long a step took."""
        self.num_steps += 1
        self.step_times_s.append(seconds)

    def tick(self, now_s: float, num_moves: int) -> None:
        """Note whether the rank has made progress since the last tick.

        A late tick adds at most two beats: the whole process was stopped then, so its main thread could not make progress either.
        """
        moves, then_s = self._seen
        self.idle_s = 0.0 if num_moves != moves else self.idle_s + min(now_s - then_s, 2 * self.beat_s)
        self._seen = num_moves, now_s

    @property
    def overdue(self) -> bool:
        """Whether the rank has made no progress for too long."""
        return self.idle_s > self.limit_s()


class Peers:
    """The states of the other ranks, read from the store, and when each last reported, by the clock of this rank."""

    def __init__(self, store: SealedStore, num_ranks: int) -> None:
        self.store, self.num_ranks = store, num_ranks
        self.states: dict[int, RankState] = {}
        self.forged: set[int] = set()  # ranks in whose name somebody else has written
        self.vanished: set[int] = set()  # ranks whose notes somebody else has deleted
        self._beats: dict[int, tuple[int, float]] = {}

    def read(self, now_s: float) -> None:
        """Read the states of all ranks again."""
        for rank, text in self._notes():
            if text is None:
                self.forged.add(rank)
                continue
            with suppress(ValueError):
                state = RankState.from_json(text)
                if self._beats.get(rank, (-1, 0.0))[0] != state.beat:
                    self._beats[rank] = state.beat, now_s
                self.states[rank] = state

    def _notes(self) -> list[tuple[int, bytes | None]]:
        """What every rank has published; a rank that has published once does so every second, so its note can only have been deleted."""
        ranks = [rank for rank in range(self.num_ranks) if rank in self.states or self.store.check([_key(rank)])]
        try:
            return list(zip(ranks, self.store.multi_get([_key(rank) for rank in ranks]), strict=True))
        except RuntimeError:
            there = [rank for rank in ranks if self.store.check([_key(rank)])]  # raises again where the store itself is gone
            self.vanished |= set(ranks) - set(there)
            return list(zip(there, self.store.multi_get([_key(rank) for rank in there]), strict=True))

    @property
    def intrusion(self) -> str:
        """A sentence about what other processes did to the notes; "" if nothing was seen."""
        odd = sorted(self.forged | self.vanished)
        if not odd:
            return ""
        return f"{_ranks(odd)}: notes in the store were changed or deleted by a process outside of this job, which reaches its port"

    def judged(self, now_s: float, dead_s: float) -> tuple[list[RankState], list[int]]:
        """All states, with ranks that have not reported for `dead_s` marked as dead; and the ranks that never reported."""
        judged = [
            replace(state, alive=state.finished or now_s - self._beats[rank][1] < dead_s) for rank, state in sorted(self.states.items())
        ]
        return judged, [rank for rank in range(self.num_ranks) if rank not in self.states]

    def forget(self) -> None:
        """Start again, because this rank makes progress again."""
        self.states.clear()
        self._beats.clear()


def _key(rank: int) -> str:
    return f"rank/{rank}"


class Watch:
    """One rank's watchdog. `report` is called with the diagnosis, on one rank only, before every rank ends.

    `witness` is called before that, on every rank: it writes what the rank knows of the hang where `report` can read it.
    """

    def __init__(
        self,
        marks: Marks,
        store: SealedStore,
        rank: int,
        num_ranks: int,
        report: Callable[[Diagnosis], None],
        *,
        timeout_s: float = STALL_S,
        start_allowance_s: float = 300.0,
        start_silence_s: float = START_SILENCE_S,
        beat_s: float = BEAT_S,
        place: Callable[[int], str] | None = None,
        witness: Callable[[], None] | None = None,
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        self.marks, self.rank, self.report, self.place, self.witness, self.end = marks, rank, report, place, witness, end
        self.patience = Patience(timeout_s, start_allowance_s, beat_s, start_silence_s)
        self.host = socket.gethostname()
        self.store = store.apart("watch", STORE_TIMEOUT_S)  # a slow answer never holds up the main thread
        self._peers = Peers(self.store, num_ranks)
        self._main = threading.get_ident()
        self._beat = 0
        self._reader = ("", 0.0)  # who read when this rank last looked, and since when that has not changed
        self._asked: tuple[float, int] | None = None  # since when the store has been asked, and the moves of the main thread then
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meshwright-watch", daemon=True)
        self._guard_thread = threading.Thread(target=self._guard_run, name="meshwright-guard", daemon=True)

    def start(self) -> None:
        """Begin to watch; call it from the main thread."""
        self._publish()
        self._thread.start()
        self._guard_thread.start()

    def stop(self) -> None:
        """Report that this rank is done, and stop watching. A store that does not answer is not waited for."""
        self._stop.set()
        for thread in (self._thread, self._guard_thread):
            if thread.is_alive():
                thread.join(STORE_TIMEOUT_S + 2 * self.patience.beat_s)
        if not self._thread.is_alive():  # it would still wait for the store, and hold its connection
            with suppress(RuntimeError):
                self._publish(finished=True)

    def rest(self) -> None:
        """Watch no longer, from the watchdog's own thread: others decide what becomes of the ranks."""
        self._stop.set()

    def step(self, number: int, step_s: float) -> None:
        """Note a finished step; its time is used for the limit."""
        self.marks.step = number
        self.patience.step(step_s)
        self.marks.do("the time between steps")

    @contextmanager
    def allow(self, seconds: float, why: str) -> Iterator[None]:
        """Allow this rank to make no progress for up to `seconds` inside the block: a checkpoint, an evaluation."""
        before, doing = self.patience.allowance, self.marks.doing
        self.patience.allowance = seconds, why
        self.marks.do(why)
        try:
            yield
        finally:
            self.patience.allowance = before
            self.marks.do(doing)

    def _run(self) -> None:
        while not self._stop.wait(self.patience.beat_s):
            self._asked = time.monotonic(), self.marks.num_moves
            self.beat(time.monotonic())
            self._asked = None

    def _guard_run(self) -> None:
        while not self._stop.wait(self.patience.beat_s):
            self.guard(time.monotonic())

    def guard(self, now_s: float) -> None:
        """End the process if the store has not answered, with its connection open, for as long as this rank has made no progress."""
        asked = self._asked
        if asked is None or self.marks.num_moves != asked[1]:
            return
        silent_s = now_s - asked[0]
        if silent_s > STORE_TIMEOUT_S and self.patience.idle_s + silent_s > self.patience.limit_s():
            found = self._alone(f"no answer for {silent_s:.0f} s", idle_s=self.patience.idle_s + silent_s, is_silent=True)
            try:
                self.report(found)
            finally:
                self._leave()  # telling the others would wait for the store too

    def beat(self, now_s: float) -> None:
        """Report this rank's state, and look at the others if it has made no progress for a while."""
        self.patience.tick(now_s, self.marks.num_moves)
        with suppress(RuntimeError):  # the store does not answer; this matters only if the rank also makes no progress
            self._publish()
        if self.patience.idle_s > POLL_SHARE * self.patience.usual_limit_s():
            self._look(now_s)
        elif self._peers.states:
            self._peers.forget()
            with suppress(RuntimeError):
                self.store.set(READER, "")

    def _publish(self, finished: bool = False) -> None:
        self._beat += 1
        state = self._state(finished)
        waits = state.waits and (*state.waits[:2], packed(state.waits[2]))
        self.store.set(_key(self.rank), json.dumps({**asdict(replace(state, waits=None)), "waits": waits}))

    def _state(self, finished: bool = False) -> RankState:
        patience, marks = self.patience, self.marks
        waits = marks.waits
        suspicious = patience.idle_s > POLL_SHARE * patience.usual_limit_s()
        return RankState(
            rank=self.rank,
            beat=self._beat,
            step=marks.step,
            doing=marks.doing,
            waits=waits and (waits[0], waits[1], tuple(waits[2])),
            idle_s=round(patience.idle_s, 3),
            limit_s=patience.limit_s(),
            at=_line_of(self._main) if suspicious else "",
            finished=finished,
            host=self.host,
        )

    def _look(self, now_s: float) -> None:
        """Read the other ranks, if no other rank does; end the process if one of them is at fault or has stopped completely.

        Of all ranks that make no progress one reads the states of all. The others only ask for its verdict: so the store answers a
        thousand of them as fast as a few.
        """
        limit_s = self.patience.usual_limit_s()
        try:
            if not self._reads(now_s):
                return
            self._peers.read(now_s)
            if self.patience.idle_s > limit_s:
                states, missing = self._peers.judged(now_s, max(DEAD_SHARE * limit_s, DEAD_BEATS * self.patience.beat_s))
                found = diagnose(states, missing, place=self.place)
                if found is not None and any(not state.alive or state.idle_s > state.limit_s for state in states):
                    odd = self._peers.intrusion
                    self._end(replace(found, text=f"{found.text}. {odd}") if odd else found)
        except RuntimeError as error:
            if self.patience.overdue:
                self._end(self._alone(str(error)))

    def _reads(self, now_s: float) -> bool:
        """Whether this rank is the one that reads the others; ends the process if the reader has ended the run."""
        mine = f"{self.rank} {self._beat}"
        try:
            found = self.store.get(READER).decode() if self.store.check([READER]) else ""
        except Forged:  # it says nothing; this rank reads, and others that see the same may read too
            self.store.set(READER, mine)
            return True
        if found == OVER:
            self._testify()
            return False
        if found.partition(" ")[0] == str(self.rank):
            self.store.set(READER, mine)
            return True
        if found != self._reader[0]:
            self._reader = found, now_s
        is_free = not found or now_s - self._reader[1] > LEASE_BEATS * self.patience.beat_s
        return is_free and self.store.compare_set(READER, found, mine).decode() == mine

    def _alone(self, error: str, *, idle_s: float | None = None, is_silent: bool = False) -> Diagnosis:
        """The diagnosis when the store no longer answers: the process that hosts it has gone, or if it is silent, the link to it is cut."""
        state = self._state() if idle_s is None else replace(self._state(), idle_s=idle_s)
        name = _namer(self.place)(self.rank)
        doing = f"waits in {_collective(state.waits)} with {_ranks(state.waits[2])}" if state.waits else f"is in {state.doing}"
        why = error.splitlines()[0] if error else "no reason given"
        gone = (
            f"the link between host {state.host} and the host of rank 0 is cut, or that host lost power: the key-value store there gave "
            f"{why}, and its connection is still open"
            if is_silent
            else f"the process that hosts the key-value store has stopped ({why})"
        )
        text = f"{name} has not moved for {state.idle_s:.1f} s and {doing}; {gone}"
        return Diagnosis(text, (), (self.rank,) if state.waits else (), state.step)

    def _end(self, found: Diagnosis) -> None:
        """Tell the others, report, keep the store for a moment so that they hear of it, and end the process."""
        try:
            with suppress(RuntimeError):  # where the store is gone, each rank finds out for itself
                self.store.set(READER, OVER)
            if self.witness:
                self.witness()
            self.report(found)
        finally:
            with suppress(RuntimeError):
                self.store.set(TOLD, "1")
            self._stop.wait(2 * self.patience.beat_s)
            self._leave()

    def _testify(self) -> None:
        """Write what this rank knows, stay until the reader has written its report, and end the process.

        A launcher ends all ranks as soon as one has ended, so none may end before the report is written.
        """
        if self.witness:
            self.witness()
            with suppress(RuntimeError):
                self.store.wait([TOLD], timedelta(seconds=(WITNESS_BEATS + 1) * self.patience.beat_s))
        if self.rank == 0:  # it hosts the store where a launcher started the ranks: the others must read the same first
            time.sleep(2 * self.patience.beat_s)
        self._leave()

    def _leave(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self.end(EXIT_HUNG)


def _line_of(thread: int) -> str:
    """The line of code that a thread is in, as "file.py line 12 (function)"."""
    frame = sys._current_frames().get(thread)
    return f"{os.path.basename(frame.f_code.co_filename)} line {frame.f_lineno} ({frame.f_code.co_name})" if frame else ""


def places(coordinate: Callable[[int], Mapping[str, int]]) -> Callable[[int], str]:
    """A rank's position in words, "dp 1, pp 0, tp 1", from a layout's `coordinate`."""
    return lambda rank: ", ".join(f"{axis} {index}" for axis, index in coordinate(rank).items())
