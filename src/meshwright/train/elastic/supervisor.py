"""The process that starts the replicas of a run, and decides which of them take part.

A rank that dies takes its replica with it: what is left of the replica is ended, the other replicas go on as a new generation, and the
lost one is started again. It joins at a step boundary, once its processes are ready. A rank that hangs is killed first: ranks that wait for
it say so, and the supervisor sees by itself that a process is stopped or gives no sign of life (`pulse`). If no replica is left, or a part
of the state is lost, the supervisor ends all ranks, and its caller starts them from the newest checkpoint.

Ranks of other nodes are started by the supervisors of those nodes (`nodes`, `follower`), and look the same from here: processes that say
something, and end. All replicas that have a rank on a node are lost with the node, and start again when the node comes back.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch.distributed as dist

from meshwright.errors import MeshwrightError, TooFewNodesError
from meshwright.layout import Layout
from meshwright.train.elastic.group import Group
from meshwright.train.elastic.member import (
    BOUNDARY,
    CHANGE,
    COME,
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
from meshwright.train.elastic.nodes import HERE, Nodes
from meshwright.train.elastic.pulse import Vitals
from meshwright.train.elastic.whereabouts import Whereabouts
from meshwright.train.health.watch import STALL_S
from meshwright.train.incidents import Incident
from meshwright.train.launch import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    HANDED_ON,
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
COMING_S = 15.0  # at least, in which the ranks of a generation must come: one that computes notices nothing before its next exchange
DEATH_S = 1.0  # after a rank has lost a connection, in which the rank at the other end may turn out to be dead
STAYS = b"meshwright: SIGUSR1 changes nothing here: the run ends with its leading supervisor; SIGTERM lets it save and stop\n"
VERDICTS = ("done", "cause", "effect")


class Supervisor:
    """The replicas of one run. `layout` is the plan's; `body` runs one process; `judged` says what becomes of a fault.

    `judged` returns the incident that is recorded, or why the run must end. `requested` returns the number of replicas that a user asks
    for, once. With `memberships` the number of replicas follows that list. A process may be stopped for `stall_s`. `nodes` are the nodes
    of the run, if it has more than this one. `kept` keeps the stacks of a rank that came late to a generation or crashed, and says where.
    """

    def __init__(
        self,
        layout: Layout,
        body: Callable[[Member], None],
        judged: Callable[[Failure], Incident | str],
        requested: Callable[[], int | None],
        memberships: Sequence[Membership] = (),
        stall_s: float = STALL_S,
        nodes: Nodes | None = None,
        kept: Callable[[int, int, str], str] = lambda generation, rank, stacks: "",
    ) -> None:
        self.layout, self.body, self.judged, self.requested, self.memberships = layout, body, judged, requested, memberships
        self.stall_s = stall_s
        self.nodes = nodes or Nodes([layout.num_ranks])
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
        self._whereabouts = Whereabouts(kept)
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
                self._start_members()
                self._announce("start")
                if self.memberships:
                    self._start_up_to(next_dp(self.memberships, 1))
                while self.failure is None and not self._is_over():
                    self._turn()
            finally:
                for child in self._handing.children:
                    child.end_now()
                self.nodes.flush()
        return self._ended()

    def close(self) -> None:
        """End the process that hosts the store."""
        if self._host is not None:
            self._host.kill()
            self._host.join()

    def has_opened(self) -> bool:
        """Whether the run folder belongs to this run: a generation has written to it."""
        store = dist.TCPStore(self.nodes.store_host, self.port, None, False, timedelta(seconds=ANSWER_S), False)
        names = [f"generation {number}" for number in range(self.generation + 1)]
        return any(store.check([f"{name}/{OPENED}"]) for name in names)

    def _ended(self) -> tuple[int, Failure | None]:
        asked = self._handing.asked
        if self._handing.ends_at_once:
            message = "a second Ctrl-C ended the ranks at once, without a checkpoint"
            return EXIT_INTERRUPTED, Failure(reason="interrupt", rank=None, message=message, noticed_s=time.monotonic())
        if self.failure is None:
            return EXIT_INTERRUPTED if signal.SIGINT in asked else 0, None
        if asked:
            self.failure = replace(self.failure, reason="interrupt")
        for text in dict.fromkeys(self.texts):
            print(text, file=sys.stderr)
        return EXIT_INPUT if self.failure.reason == "input" else EXIT_FAILED, self.failure

    def _open(self) -> None:
        """Start the process of the store."""
        listener = socket.create_server((self.nodes.bind_host, 0))
        self.port = listener.getsockname()[1]
        arguments = (listener, self.nodes, os.getpid())
        process = multiprocessing.get_context("fork").Process(target=_host_store, args=arguments, daemon=True)
        process.start()
        listener.close()
        self._host = process

    def _start_members(self) -> None:
        """Start the first replicas: all that can be started, because nodes may have been lost before all ranks started again."""
        while not (able := [number for number in range(self.wanted) if self._can_start(number)]):
            if self._handing.asked:
                raise MeshwrightError("a signal ended the start", where="the nodes of the run", fix="continue the run: --resume")
            if time.monotonic() - self.began_s > self.nodes.timeout_s:
                raise TooFewNodesError(
                    "no replica can be started again: its nodes did not come back",
                    where="the nodes of the run",
                    fix="start the supervisors of the nodes again, and continue the run: --resume",
                )
            wait(self.nodes.waitables(), timeout=LOOK_S)
            self._turn_nodes()
        self.members = [self._started(number) for number in able]

    def _can_start(self, number: int) -> bool:
        """Whether all nodes are there that a replica has ranks on."""
        return all(self.nodes.is_there(self._seating(number, seat)[0]) for seat in range(self._size))

    def _started(self, number: int) -> Group:
        """Start the processes of a replica. Signals are blocked meanwhile, because a rank would handle them as its own."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
        try:
            started = [self._started_one(number, seat, before) for seat in range(self._size)]
            for child, _ in started:
                self._handing.add(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Group(number, [child for child, _ in started], [vitals for _, vitals in started], time.monotonic())

    def _started_one(self, number: int, seat: int, mask: set[int | signal.Signals]) -> tuple[Child, Vitals]:
        """Fork one process, or have it forked on its node."""
        position, local_rank = self._seating(number, seat)
        rank = self._rank(number, seat)
        if position == HERE:
            vitals = Vitals()
            return forked(rank, partial(self._member, number, seat, local_rank, vitals), mask), vitals
        return self.nodes.start(
            position,
            rank,
            replica=number,
            seat=seat,
            num_seats=self._size,
            local_rank=local_rank,
            num_sharing=self.nodes.sizes[position],
            port=self.port,
            secret=self.secret.hex(),
            elapsed_s=time.monotonic() - self.began_s,
        )

    def _apart(self) -> int:
        """How many places further the copy of a replica's state must be, so that no node holds both; 1 if there is no such number."""
        homes = [{self._seating(group.number, seat)[0] for seat in range(self._size)} for group in self.members]
        turns = range(1, len(homes))
        return next((by for by in turns if all(home.isdisjoint(homes[(at + by) % len(homes)]) for at, home in enumerate(homes))), 1)

    @property
    def _size(self) -> int:
        """The number of ranks of a replica."""
        return self.layout.num_ranks // self.layout.dp

    def _rank(self, number: int, seat: int) -> int:
        """The rank that a process has when all replicas of the plan are there; those beyond the plan are numbered after them."""
        place = Layout(tp=self.layout.tp, cp=self.layout.cp, pp=self.layout.pp, order=self.layout.order).coordinate(seat)
        return self.layout.rank({**place, "dp": number}) if number < self.layout.dp else number * self._size + seat

    def _seating(self, number: int, seat: int) -> tuple[int, int]:
        """The position of a process among the nodes, and its number there. Replicas beyond the plan sit where those of the plan do."""
        turn, within = divmod(number, self.layout.dp)
        rank = self._rank(within, seat)
        position = self.nodes.position(rank)
        return position, rank - self.nodes.first_rank(position) + turn * self.nodes.sizes[position]

    def _member(self, number: int, seat: int, local_rank: int, vitals: Vitals, heard: Connection, said: Connection) -> None:
        """The life of one process of a replica."""
        self.nodes.leave_to_parent()
        self.body(
            Member(
                replica=number,
                seat=seat,
                num_seats=self._size,
                local_rank=local_rank,
                num_sharing=self.nodes.sizes[HERE],
                host=self.nodes.store_host,
                has_others=self.nodes.are_several,
                port=self.port,
                secret=self.secret,
                began_s=self.began_s,
                heard=heard,
                said=said,
                pulse=vitals.pulse,
                stacks=vitals.stacks,
            )
        )

    def _is_over(self) -> bool:
        """Whether all members have ended well. Newcomers are no longer needed then."""
        return all(child.verdict == "done" and not child.process.is_alive() for group in self.members for child in group.children)

    def _turn(self) -> None:
        """Wait for something to happen, and deal with it."""
        groups = [*self.members, *self.joining, *self.leaving]
        living = [child for group in groups for child in group.children if child.process.is_alive()]
        assert self._host is not None
        readable = {one for child in living for one in (child.process.sentinel, child.end.fileno())}
        wait({*readable, *self.nodes.waitables(), self._host.sentinel}, timeout=LOOK_S)
        self._turn_nodes()
        for group in groups:
            for child in group.children:
                self._listen(group, child)
        if not self._host.is_alive():
            self._give_up(Failure(reason="exit", rank=None, message="the process that hosts the store of the ranks has ended"))
        for group in [group for group in groups if self._has_died(group)]:
            self._lose([group], *self._death_of(group))
        self._look_at_life()
        self._look_at_connections()
        self._look_at_request()
        self._change()

    def _turn_nodes(self) -> None:
        """Hear the supervisors of other nodes; replicas that have a rank on a node that is gone are lost."""
        self.nodes.turn()
        while self.nodes.asked:
            node, number = self.nodes.asked.pop(0)
            if number == signal.SIGINT or not self._handing.asked:  # many nodes may receive the same signal
                self._handing.take(number, node)
        for loss in self.nodes.losses():
            gone = [
                group
                for group in (*self.members, *self.joining, *self.leaving)
                if any(one.process in loss.processes for one in group.children)
            ]
            if gone:
                self._lose(list(dict.fromkeys(gone)), loss.failure, [f"meshwright: {loss.failure.message}"])

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

    def _death_of(self, group: Group) -> tuple[Failure, list[str]]:
        """Why a replica has ended, and what is printed."""
        failure, texts = failure_of(group.children)
        for child, vitals in zip(group.children, group.vitals, strict=True):
            if failure.reason == "signal" and child.rank == failure.rank:
                failure = self._whereabouts.of_crash(failure, child.rank, vitals.stacks)
        return failure, texts

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
            group.ready[child.rank] = time.monotonic()
        elif what == COME and int(detail) == self.generation:
            self._whereabouts.has_come(child.rank, group.vitals[group.children.index(child)].stacks)
        elif what == BOUNDARY:
            group.at_boundary[child.rank] = int(detail)
        elif what == LOST and int(detail.partition(" ")[0]) == self.generation and self._lost_s is None:
            self._lost_s = time.monotonic()
        elif what == HANG:
            self._end_hung(json.loads(detail))
        elif what == UNCOVERED:
            self._give_up(Failure(reason="state", rank=None, message=detail, noticed_s=time.monotonic(), from_outside=True))
        elif what == NOTICE and group in self.members and group not in self.leaving:
            self._take_leave(group)

    def _take_leave(self, group: Group) -> None:
        """Let a replica leave that was told that its machine will go; the last one stays, because the state would be lost with it."""
        if not any(other is not group and other not in self.leaving for other in self.members):
            said = f"meshwright: replica {group.number} has notice to leave, and stays: no other one would go on with the run"
            print(f"{said}; SIGTERM lets the run save and stop", file=sys.stderr)
            return
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
        self._lose([self.members[number] for number in numbers], failure, [])

    def _give_up(self, failure: Failure, texts: Sequence[str] = ()) -> None:
        """End the run with this failure, unless it has one already."""
        if self.failure is None:
            self.failure, self.texts = replace(failure, noticed_s=failure.noticed_s or time.monotonic()), list(texts)

    def _lose(self, lost: Sequence[Group], failure: Failure, texts: Sequence[str]) -> None:
        """Go on without replicas of which a process has ended, for one and the same reason, and start them again."""
        failure = replace(failure, noticed_s=time.monotonic())
        for child in [child for group in lost for child in group.children]:
            child.end_now()
        num_before = len(self.members)
        was_member = any(group in self.members for group in lost)
        needed = was_member or any(group in self.joining for group in lost)
        for groups in (self.members, self.joining, self.leaving):
            groups[:] = [group for group in groups if group not in lost]
        if not needed or self._handing.ends_at_once or (self._handing.asked and not was_member):
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
            numbers = ", ".join(str(group.number) for group in lost)
            print(f"meshwright: replica {numbers} is not started again: {verdict}", file=sys.stderr)
            return
        action = f"went on with {len(self.members)} of {num_before} replicas"
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
            failure = group.lifeless(self.stall_s, now_s, passed_s)
            if failure is not None and self.failure is None:
                self._lose([group], failure, [f"meshwright: {failure.message}"])
        self._look_at_meeting(now_s)

    def _look_at_meeting(self, now_s: float) -> None:
        """Go on without replicas that do not come to the newest generation."""
        if self.failure is not None:
            return
        expected = [one for group in self.members for one in group.expected()]
        missing = self._whereabouts.missing(expected, max(COMING_S, self.stall_s), now_s)
        if missing is not None:
            ranks, failure = missing
            lost = [group for group in self.members if any(child.rank in ranks for child in group.children)]
            self._lose(lost, failure, [f"meshwright: {failure.message}"])

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
        num_missing = self.wanted - len(staying) - len(self.joining)
        most = max(self.layout.dp, self.wanted) if self.nodes.are_several else len(taken) + num_missing
        able = [number for number in range(most) if number not in taken and self._can_start(number)] if num_missing > 0 else []
        self.joining += [self._started(number) for number in able[: max(num_missing, 0)]]

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
            if self.failure is not None or not all(group.is_ready for group in self.joining):
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
        while (number := len(self.members) + len(self.joining)) < dp:
            if not self._can_start(number):
                self._give_up(*self._absence(number))
                return
            self.joining.append(self._started(number))

    def _absence(self, number: int) -> tuple[Failure, list[str]]:
        """Why a run that follows a list of memberships ends: nodes are away on which a replica of the list has ranks."""
        positions = dict.fromkeys(self._seating(number, seat)[0] for seat in range(self._size))
        away = ", ".join(str(position) for position in positions if not self.nodes.is_there(position))
        error = MeshwrightError(
            f"replica {number} must join now, and node {away} is not there",
            where="--memberships",
            fix="start the run again once all nodes are there",
        )
        failure = Failure(reason="node", rank=None, message=error.what, noticed_s=time.monotonic(), from_outside=True)
        return failure, [f"meshwright: {error}"]

    def _announce(self, reason: str, incident: Incident | None = None) -> None:
        """Begin a new generation: with all members, and with newcomers that are ready."""
        self.members += [group for group in self.joining if group.is_ready][: max(self.wanted - len(self.members), 0)]
        self.joining = [group for group in self.joining if group not in self.members]
        self.generation += 1
        self._lost_s, self._called = None, None
        self._whereabouts.announced(self.generation)
        announced = Announcement(
            generation=self.generation,
            replicas=tuple(group.number for group in self.members),
            reason=reason,
            incident=asdict(incident) if incident else None,
            apart=self._apart(),
        )
        for group in self.members:
            group.at_boundary.clear()
            group.send(GENERATION, announced.to_json())


@contextmanager
def staying() -> Iterator[None]:
    """SIGUSR1, a notice that a machine will go, does not end this process: the run ends with it, so it says what helps instead."""

    def stays(number: int, frame: object) -> None:
        with suppress(OSError):  # not print: a handler may come in the middle of one
            os.write(2, STAYS)

    if signal.getsignal(signal.SIGUSR1) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGUSR1, stays)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _host_store(listener: socket.socket, nodes: Nodes, parent: int) -> None:
    """Host the store until the parent ends this process."""
    for number in (*HANDED_ON, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    end_with(parent)
    nodes.leave_to_parent()
    server = dist.TCPStore(
        nodes.store_host, listener.getsockname()[1], None, True, timedelta(seconds=MEETING_S), False, master_listen_fd=listener.detach()
    )
    while server:
        signal.pause()
