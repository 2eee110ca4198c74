"""The process that starts the replicas of a run on one machine, and decides which of them take part.

A rank that dies takes its replica with it: what is left of the replica is ended, the other replicas go on as a new generation, and the
lost one is started again. It joins at a step boundary, once its processes are ready. A rank that hangs is killed first: ranks that wait for
it say so, and the supervisor sees by itself that a process is stopped or gives no sign of life (`pulse`). If no replica is left, or a part
of the state is lost, the supervisor ends all ranks, and its caller starts them from the newest checkpoint.

The store through which ranks meet is in a process of its own. This process runs no threads, so that it can fork ranks at any time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch.distributed as dist

from meshwright.layout import Layout
from meshwright.train.elastic.member import (
    BOUNDARY,
    CHANGE,
    GENERATION,
    HANG,
    LEAVE,
    LOST,
    NOTICE,
    READY,
    UNCOVERED,
    Announcement,
    Member,
)
from meshwright.train.elastic.pulse import Pulse, Vitals, is_stopped
from meshwright.train.health.watch import STALL_S, START_SILENCE_S
from meshwright.train.incidents import Incident
from meshwright.train.launch import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    HANDED_ON,
    LOCALHOST,
    MEETING_S,
    OPENED,
    Child,
    Failure,
    Handing,
    end_with,
    failure_of,
    forked,
    handing_on,
)
from meshwright.train.membership import Membership, dp_at, layout_with, next_dp

ANSWER_S = 5.0  # of the store
LOOK_S = 0.2  # between two looks at requests and at signs of life
READY_S = 600.0  # in which a process must have prepared itself
DEATH_S = 1.0  # after a rank has lost a connection, in which the rank at the other end may turn out to be dead
VERDICTS = ("done", "cause", "effect")


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one replica."""

    number: int
    children: list[Child]
    vitals: list[Vitals]  # of the processes, in the same order
    started_s: float
    ready: set[int] = field(default_factory=set)  # processes that have prepared themselves, by number
    at_boundary: dict[int, int] = field(default_factory=dict)  # processes that wait at a step boundary, and the step

    @property
    def is_ready(self) -> bool:
        """Whether all its processes can join."""
        return len(self.ready) == len(self.children)

    def send(self, what: str, detail: str = "") -> None:
        """Tell all its processes something."""
        for child in self.children:
            with suppress(OSError):
                child.ask.send((what, detail))


class Supervisor:
    """The replicas of one run. `layout` is the plan's; `body` runs one process; `judged` says what becomes of a fault.

    `judged` returns the incident that is recorded, or why the run must end. `requested` returns the number of replicas that a user asks
    for, once. With `memberships` the number of replicas follows that list. A process may be stopped for `stall_s`.
    """

    def __init__(
        self,
        layout: Layout,
        body: Callable[[Member], None],
        judged: Callable[[Failure], Incident | str],
        requested: Callable[[], int | None],
        memberships: Sequence[Membership] = (),
        stall_s: float = STALL_S,
    ) -> None:
        self.layout, self.body, self.judged, self.requested, self.memberships = layout, body, judged, requested, memberships
        self.stall_s = stall_s
        self.wanted = dp_at(memberships, 1) if memberships else layout.dp
        self.members: list[Group] = []
        self.joining: list[Group] = []
        self.leaving: list[Group] = []  # members that will leave, and those that have left and may still write
        self.generation = -1
        self.failure: Failure | None = None
        self.texts: list[str] = []
        self.secret = os.urandom(32)
        self.began_s = time.monotonic()
        self._lost_s: float | None = None
        self._looked_s = self.began_s  # when the signs of life were last looked at
        self._called: list[Group] | None = None  # the replicas that leave, once a change at the next step boundary is called for
        self._handing = Handing()  # all processes, and the signals that ask the run to stop
        self._host: ForkProcess | None = None
        self.port = 0

    def run(self) -> tuple[int, Failure | None]:
        """Run the replicas until the run is over; the exit status, and why they ended too early."""
        with suppress(OSError):
            sys.stdout.flush()  # otherwise every rank would print the buffered text
        with handing_on() as self._handing:
            self._open()
            try:
                self.members = [self._started(number) for number in range(self.wanted)]
                self._announce("start")
                if self.memberships:
                    self._start_up_to(next_dp(self.memberships, 1))
                while self.failure is None and not self._is_over():
                    self._turn()
            finally:
                for child in self._handing.children:
                    child.end_now()
        return self._ended(self._handing.asked)

    def close(self) -> None:
        """End the process that hosts the store."""
        if self._host is not None:
            self._host.kill()
            self._host.join()

    def has_opened(self) -> bool:
        """Whether the run folder belongs to this run: a generation has written to it."""
        store = dist.TCPStore(LOCALHOST, self.port, None, False, timedelta(seconds=ANSWER_S), False)
        names = [f"generation {number}" for number in range(self.generation + 1)]
        return any(store.check([f"{name}/{OPENED}"]) for name in names)

    def _ended(self, asked: Sequence[int]) -> tuple[int, Failure | None]:
        num_interrupts = asked.count(signal.SIGINT)
        if num_interrupts > 1:
            message = "a second Ctrl-C ended the ranks at once, without a checkpoint"
            return EXIT_INTERRUPTED, Failure(reason="interrupt", rank=None, message=message, noticed_s=time.monotonic())
        if self.failure is None:
            return EXIT_INTERRUPTED if num_interrupts else 0, None
        if asked:
            self.failure = replace(self.failure, reason="interrupt")
        for text in dict.fromkeys(self.texts):
            print(text, file=sys.stderr)
        return EXIT_INPUT if self.failure.reason == "input" else EXIT_FAILED, self.failure

    def _open(self) -> None:
        """Start the process of the store."""
        listener = socket.create_server((LOCALHOST, 0))
        self.port = listener.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(target=_host_store, args=(listener, os.getpid()), daemon=True)
        process.start()
        listener.close()
        self._host = process

    def _started(self, number: int) -> Group:
        """Fork the processes of a replica. Signals are blocked meanwhile, because a rank would handle them as its own."""
        size = self.layout.num_ranks // self.layout.dp
        vitals = [Vitals() for _ in range(size)]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
        try:
            bodies = [partial(self._member, number, seat, one.pulse) for seat, one in enumerate(vitals)]
            children = [forked(self._rank(number, seat, size), body, before) for seat, body in enumerate(bodies)]
            for child in children:
                self._handing.add(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Group(number, children, vitals, time.monotonic())

    def _rank(self, number: int, seat: int, size: int) -> int:
        """The rank that a process has when all replicas of the plan are there; those beyond the plan are numbered after them."""
        place = Layout(tp=self.layout.tp, cp=self.layout.cp, pp=self.layout.pp, order=self.layout.order).coordinate(seat)
        return self.layout.rank({**place, "dp": number}) if number < self.layout.dp else number * size + seat

    def _member(self, number: int, seat: int, pulse: Pulse, heard: Connection, said: Connection) -> None:
        """The life of one process of a replica."""
        self.body(
            Member(
                replica=number,
                seat=seat,
                num_seats=self.layout.num_ranks // self.layout.dp,
                port=self.port,
                secret=self.secret,
                began_s=self.began_s,
                heard=heard,
                said=said,
                pulse=pulse,
            )
        )

    def _is_over(self) -> bool:
        """Whether all members have ended well. Newcomers are no longer needed then."""
        return all(child.verdict == "done" and not child.process.is_alive() for group in self.members for child in group.children)

    def _turn(self) -> None:
        """Wait for something to happen, and deal with it."""
        groups = [*self.members, *self.joining, *self.leaving]
        living = {child.process.sentinel: child for group in groups for child in group.children if child.process.is_alive()}
        pipes = [child.end for child in living.values()]
        assert self._host is not None
        wait([*living, *pipes, self._host.sentinel], timeout=LOOK_S)
        for group in groups:
            for child in group.children:
                self._listen(group, child)
        if not self._host.is_alive():
            self._give_up(Failure(reason="exit", rank=None, message="the process that hosts the store of the ranks has ended"))
        for group in [group for group in groups if self._has_died(group)]:
            self._lose(group, *failure_of(group.children))
        self._look_at_life()
        self._look_at_connections()
        self._look_at_request()
        self._change()

    def _has_died(self, group: Group) -> bool:
        """Whether a process of a replica that is needed has ended, and not well."""
        if group not in self.members and group not in self.joining:  # it has left, or was lost before
            return False
        ended = [child for child in group.children if not child.process.is_alive()]
        for child in ended:
            child.process.join()
            if child.verdict != "done" or child.process.exitcode:
                child.ended_first = True
                return True
        return False

    def _listen(self, group: Group, child: Child) -> None:
        """Read what a process says."""
        with suppress(EOFError, OSError):
            while child.end.poll():
                what, detail = child.end.recv()
                if what in VERDICTS:
                    child.verdict, child.message = what, detail
                else:
                    self._hear(group, child, what, detail)

    def _hear(self, group: Group, child: Child, what: str, detail: str) -> None:
        if what == READY:
            group.ready.add(child.rank)
        elif what == BOUNDARY:
            group.at_boundary[child.rank] = int(detail)
        elif what == LOST and int(detail.partition(" ")[0]) == self.generation and self._lost_s is None:
            self._lost_s = time.monotonic()
        elif what == HANG:
            self._end_hung(json.loads(detail))
        elif what == UNCOVERED:
            self._give_up(Failure(reason="state", rank=None, message=detail, noticed_s=time.monotonic(), from_outside=True))
        elif what == NOTICE and group in self.members and group not in self.leaving:
            self.leaving.append(group)
            self.wanted = max(self.wanted - 1, 1)

    def _end_hung(self, found: dict[str, object]) -> None:
        """Kill the replicas of ranks that hang; if no rank is named, all of them."""
        ranks = found["ranks"]
        assert isinstance(ranks, list)
        if found["generation"] != self.generation:
            return
        layout = layout_with(self.layout, len(self.members))
        numbers = {layout.coordinate(int(rank))["dp"] for rank in ranks}
        failure = Failure(reason="hang", rank=int(ranks[0]) if len(ranks) == 1 else None, message=str(found["text"]))
        if not numbers or len(numbers) == len(self.members):
            self._give_up(replace(failure, noticed_s=time.monotonic()))
            return
        for group in [self.members[number] for number in numbers]:
            self._lose(group, failure, [])

    def _give_up(self, failure: Failure, texts: Sequence[str] = ()) -> None:
        """End the run with this failure, unless it has one already."""
        if self.failure is None:
            self.failure, self.texts = replace(failure, noticed_s=failure.noticed_s or time.monotonic()), list(texts)

    def _lose(self, group: Group, failure: Failure, texts: Sequence[str]) -> None:
        """Go on without a replica of which a process has ended, and start the replica again."""
        failure = replace(failure, noticed_s=time.monotonic())
        for child in group.children:
            child.end_now()
        was_member = group in self.members
        for groups in (self.members, self.joining, self.leaving):
            if group in groups:
                groups.remove(group)
        if self._handing.asked and not was_member:
            return
        has_ended = any(child.verdict == "done" for other in self.members for child in other.children)
        if failure.reason == "input" or not self.members or has_ended:
            self._give_up(failure, texts)
            return
        verdict = self.judged(failure)
        if isinstance(verdict, str) and was_member:
            self._give_up(failure, [*texts, f"meshwright: the run does not go on: {verdict}"])
            return
        if isinstance(verdict, str):
            self.wanted = len(self.members)  # the replica cannot be started; the others do without it
            print(f"meshwright: replica {group.number} is not started again: {verdict}", file=sys.stderr)
            return
        action = f"went on with {len(self.members)} of {len(self.members) + was_member} replicas"
        print(f"meshwright: incident {verdict.number} at step {verdict.step}: {verdict.message}; {action}", file=sys.stderr)
        if was_member:
            self._announce("lost", replace(verdict, action=action))
        self._start_missing()

    def _look_at_life(self) -> None:
        """Go on without replicas that have a process which is stopped, gives no sign of life, or does not become ready."""
        now_s = time.monotonic()
        passed_s = now_s - self._looked_s
        if passed_s < LOOK_S:
            return
        self._looked_s = now_s
        for group in [*self.members, *self.joining]:
            failure = self._lifeless(group, now_s, passed_s)
            if failure is not None and self.failure is None:
                self._lose(group, failure, [f"meshwright: {failure.message}"])

    def _lifeless(self, group: Group, now_s: float, passed_s: float) -> Failure | None:
        """What is wrong with a replica whose processes have not ended; None if nothing is."""
        for child, vitals in zip(group.children, group.vitals, strict=True):
            if child.process.pid is None or not child.process.is_alive():  # it has ended well, before others of the run
                continue
            vitals.look(is_stopped(child.process.pid), passed_s)
            who = f"rank {child.rank}"
            if vitals.stopped_s >= self.stall_s:
                message = f"{who} was stopped by a signal, and not continued for {vitals.stopped_s:.1f} s"
                return Failure(reason="hang", rank=child.rank, message=message, from_outside=True)
            if vitals.silent_s >= max(START_SILENCE_S, self.stall_s):
                return Failure(reason="hang", rank=child.rank, message=f"{who} gave no sign of life for {vitals.silent_s:.0f} s")
            if child.rank not in group.ready and now_s - group.started_s > READY_S:
                return Failure(reason="hang", rank=child.rank, message=f"{who} was not ready {READY_S:.0f} s after its start")
        return None

    def _look_at_connections(self) -> None:
        """Form the groups anew if a connection was lost and no rank has died."""
        if self._lost_s is None or time.monotonic() - self._lost_s < DEATH_S:
            return
        failure = Failure(
            reason="connection",
            rank=None,
            message="ranks lost a connection, and all of them are there",
            noticed_s=self._lost_s,
            from_outside=True,
        )
        verdict = self.judged(failure)
        if isinstance(verdict, str):
            self._give_up(failure, [f"meshwright: the run does not go on: {verdict}"])
        else:
            self._announce("lost", replace(verdict, action="connected the ranks anew"))

    def _look_at_request(self) -> None:
        """Start or release replicas if a user asks for another number."""
        asked = self.requested()
        if asked is not None:
            self.wanted = asked
        self._start_missing()

    def _start_missing(self) -> None:
        staying = [group for group in self.members if group not in self.leaving]
        taken = {group.number for group in (*self.members, *self.joining)}
        if self.memberships or self._handing.asked:
            return
        for _ in range(self.wanted - len(staying) - len(self.joining)):
            number = next(number for number in range(len(taken) + 1) if number not in taken)
            taken.add(number)
            self.joining.append(self._started(number))

    def _change(self) -> None:
        """Let replicas join or leave, once all members wait at a step boundary; call for that if there is a reason."""
        if self.failure is not None:
            return
        if self.members and all(len(group.at_boundary) == len(group.children) for group in self.members):
            self._change_now()
        elif self._called is None and self._has_reason():
            staying = [group for group in self.members if group not in self.leaving][: self.wanted]
            self._called = [group for group in self.members if group not in staying]
            for group in self.members:
                group.send(CHANGE, json.dumps([other.number for other in self._called]))

    def _has_reason(self) -> bool:
        if self.memberships:  # the ranks know after which steps they change
            return False
        joins = self.joining and all(group.is_ready for group in self.joining)
        return bool(joins) or len(self.members) > self.wanted

    def _change_now(self) -> None:
        step = 0
        if self.memberships:
            step = max(max(group.at_boundary.values()) for group in self.members)
            self.wanted = dp_at(self.memberships, step + 1)
            self._start_up_to(self.wanted)
            if not all(group.is_ready for group in self.joining):
                return
        left = self.members[self.wanted :] if self.memberships else self._called or []
        staying = [group for group in self.members if group not in left]
        for group in left:
            group.send(LEAVE)
        self.leaving = left
        self.members = staying
        self._announce("planned" if self.memberships else "scaled" if left else "joined")
        if self.memberships:
            self._start_up_to(next_dp(self.memberships, step + 1))

    def _start_up_to(self, dp: int) -> None:
        """Start the replicas that a list of memberships needs next; they prepare themselves while the others train."""
        while len(self.members) + len(self.joining) < dp:
            self.joining.append(self._started(len(self.members) + len(self.joining)))

    def _announce(self, reason: str, incident: Incident | None = None) -> None:
        """Begin a new generation: with all members, and with newcomers that are ready."""
        self.members += [group for group in self.joining if group.is_ready][: max(self.wanted - len(self.members), 0)]
        self.joining = [group for group in self.joining if group not in self.members]
        self.generation += 1
        self._lost_s, self._called = None, None
        announced = Announcement(
            generation=self.generation,
            replicas=tuple(group.number for group in self.members),
            reason=reason,
            incident=asdict(incident) if incident else None,
        )
        for group in self.members:
            group.at_boundary.clear()
            group.send(GENERATION, announced.to_json())


def _host_store(listener: socket.socket, parent: int) -> None:
    """Host the store until the parent ends this process."""
    for number in HANDED_ON:
        signal.signal(number, signal.SIG_IGN)
    end_with(parent)
    server = dist.TCPStore(
        LOCALHOST, listener.getsockname()[1], None, True, timedelta(seconds=MEETING_S), False, master_listen_fd=listener.detach()
    )
    while server:
        signal.pause()
