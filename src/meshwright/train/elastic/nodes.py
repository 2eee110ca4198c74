"""The nodes of a run, as its leading supervisor sees them: which are there, and what their supervisors say of the processes of ranks.

A plan's ranks are dealt to *positions*, one for each node that it needs. The leading supervisor is at position 0. The others connect to it,
say which node they are, and each takes its position; those that the plan has no position for are spares. If a node is lost, a spare takes
its position, or the node itself when it comes back.

A node is lost when its connection ends, or when it has not answered for the limit of a stop. Its ranks are lost with it. Its supervisor
hears as little of this one, and ends its ranks before that (`follower.SHARE`), so that none of them goes on.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from meshwright.errors import InputError, MeshwrightError, TooFewNodesError
from meshwright.train.agreement import disagreement
from meshwright.train.elastic.channel import Channel, Guest, Refused
from meshwright.train.elastic.interface import use_interface_of
from meshwright.train.elastic.pulse import MOST_GAP_S, Stacks, Vitals
from meshwright.train.launch import LOCALHOST, MEETING_S, Child, Failure

LOOK_S = 0.2
BEAT_S = 0.5  # between two messages that only say that this end is there
MOST_GUESTS = 64  # connections that have not proven themselves
MOST_LINES = 20  # of refused connections; the others are counted
TAKEN_S = 45.0  # in which a supervisor that leads no longer has saved: --grace, which is 30 s, and some more
LEAVE_S = 3.0  # in which the others may read that the run is over
HERE = 0  # the position of this process's own ranks
# What the leading supervisor says, and what the others say.
BEAT, START, TELL, END, ASK, OVER, REFUSED, REPLACED = "beat", "start", "tell", "end", "ask", "over", "refused", "replaced"
STACKS = "stacks"  # asked for, and the answer
FACTS, SAID, ENDED, ASKED = "facts", "said", "ended", "asked"


class RemoteStacks(Stacks):
    """Where the threads of a process on another node are: its supervisor asks it, and sends what it wrote."""

    def __init__(self, process: RemoteProcess) -> None:
        self._process, self._question, self._text = process, 0, ""

    def ask(self, pid: int | None) -> None:
        """Have it asked. Questions are numbered, because the answer to the one before may be on its way."""
        self._question, self._text = self._question + 1, ""
        self._process.node.channel.say(STACKS, number=self._process.number, question=self._question)

    def hear(self, text: str, question: int | None = None) -> None:
        """Take an answer, or what the process has left at its end."""
        if question in (None, self._question):
            self._text = text

    def read(self, within_s: float = 0.0) -> str:
        """What has been sent since it was asked last."""
        return self._text


class RemoteProcess:
    """A process of a rank on another node: also the pipes from and to it."""

    def __init__(self, node: Node, number: int) -> None:
        self.node, self.number = node, number
        self.pid: int | None = None
        self.exitcode: int | None = None
        self.said: deque[tuple[str, str]] = deque()
        self.stacks = RemoteStacks(self)
        self.vitals = Vitals(stacks=self.stacks)

    @property
    def sentinel(self) -> int:
        """What becomes readable when its supervisor says something."""
        return self.fileno()

    def fileno(self) -> int:
        """The same."""
        return self.node.channel.fileno()

    def is_alive(self) -> bool:
        """Whether it has not ended, as far as is known here."""
        return self.exitcode is None

    def kill(self) -> None:
        """Have it killed. It counts as ended from now on: its supervisor ends it before it starts another one."""
        if self.exitcode is None:
            self.exitcode = -int(signal.SIGKILL)
            self.node.channel.say(END, number=self.number)

    def terminate(self) -> None:
        """Have it sent SIGTERM."""
        self.node.channel.say(ASK, number=self.number)

    def join(self) -> None:
        """Nothing is waited for: `kill` says why."""

    def poll(self) -> bool:
        """Whether it has said something."""
        return bool(self.said)

    def recv(self) -> tuple[str, str]:
        """What it said."""
        return self.said.popleft()

    def send(self, obj: tuple[str, str] | tuple[str]) -> None:
        """Tell it something."""
        self.node.channel.say(TELL, number=self.number, words=list(obj), now_s=time.monotonic())


@dataclass(slots=True, eq=False)
class Node:
    """Another node: its supervisor, and the ranks that it runs."""

    number: int  # as its supervisor was started
    address: str
    channel: Channel
    position: int | None = None  # of the plan; None: it is a spare
    is_checked: bool = False  # whether it would train the same run
    processes: dict[int, RemoteProcess] = field(default_factory=dict)
    silent_s: float = 0.0

    @property
    def words(self) -> str:
        """The node in an error."""
        return f"node {self.number} ({self.address})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A node that is lost, with the processes that ran there."""

    failure: Failure
    processes: Sequence[RemoteProcess]


class Nodes:
    """All nodes of a run. `sizes` are the ranks of each position, in the order of the ranks; `facts` must be the same on all nodes."""

    def __init__(
        self,
        sizes: Sequence[int],
        host: str = LOCALHOST,
        port: int = 0,
        secret: bytes = b"",
        facts: Mapping[str, str] | None = None,
        stall_s: float = 10.0,
        timeout_s: float = MEETING_S,
    ) -> None:
        self.sizes, self.secret, self.facts = list(sizes), secret, dict(facts or {})
        self.stall_s, self.timeout_s = stall_s, timeout_s
        self.terms: Mapping[str, Any] = {}  # what all ranks that are started must know, beside their place
        self.asked: list[tuple[int, int]] = []  # signals that nobody has dealt with: each after the node whose supervisor received it
        self._host, self._port = host, port
        self._nodes: list[Node] = []
        self._guests: list[Guest] = []
        self._losses: list[Loss] = []
        self._listener: socket.socket | None = None
        self._looked_s = self._beaten_s = time.monotonic()
        self._num_started = self._num_refused = 0
        self._has_met = False  # until then a spare takes no position: the node that it belongs to may only be late

    @property
    def are_several(self) -> bool:
        """Whether other nodes may take part."""
        return self._listener is not None

    @property
    def store_host(self) -> str:
        """The address at which processes of this node reach the store; the store listens there, and on all addresses if it is a name."""
        return self._host if self._host == _numeric(self._host) else LOCALHOST

    @property
    def bind_host(self) -> str:
        """The address at which this process listens. A name may stand for another address here than for other nodes: then at all."""
        return self._host if self._host == _numeric(self._host) else ""

    def open(self) -> None:
        """Listen for the supervisors of other nodes."""
        try:
            self._listener = self._listening()
        except OSError as error:
            raise InputError(
                f"cannot wait for the other nodes: {error.strerror or error}",
                where=f"--meet {self._host}:{self._port}",
                fix="name an address of this node, and a port that is free",
            ) from None
        self._listener.setblocking(False)

    def _listening(self) -> socket.socket:
        """The port, once it is free: a leading supervisor whose ssh connection was lost may still be saving."""
        until_s, has_told = time.monotonic() + TAKEN_S, False
        while True:
            try:
                return socket.create_server((self.bind_host, self._port), backlog=MOST_GUESTS)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > until_s:
                    raise
            if not has_told:
                _tell(f"meshwright: another program listens at {self._host}:{self._port}; waiting up to {TAKEN_S:g} s for it to end")
            has_told = True
            time.sleep(LOOK_S)

    def meet(self) -> None:
        """Wait until every position has a node that would train the same run; otherwise an error."""
        until_s = time.monotonic() + self.timeout_s
        refusal: list[InputError] = []
        while not refusal and not self._is_full():
            if self.asked:
                raise MeshwrightError("a signal ended the start", where=f"{self._host}:{self._port}", fix="start all nodes again")
            if time.monotonic() > until_s:
                self._has_met = True
                self._fill_positions()
                if self._is_full():
                    break
                raise self._not_all()
            wait([*self.waitables()], timeout=LOOK_S)
            self.turn(refusal)
            self._losses.clear()
        if refusal:
            raise refusal[0]
        self._has_met = True
        use_interface_of(next((node.channel.own_host for node in self._nodes), self.store_host))

    def position(self, rank: int) -> int:
        """The position that a rank of the plan has."""
        return next(position for position in range(len(self.sizes)) if rank < sum(self.sizes[: position + 1]))

    def first_rank(self, position: int) -> int:
        """The first rank of a position."""
        return sum(self.sizes[:position])

    def is_there(self, position: int) -> bool:
        """Whether ranks can be started at a position."""
        return position == HERE or self._at(position) is not None

    def start(self, position: int, rank: int, **order: Any) -> tuple[Child, Vitals]:
        """Start a rank on another node."""
        node = self._at(position)
        assert node is not None, "only where a node is"
        self._num_started += 1
        process = RemoteProcess(node, self._num_started)
        node.processes[process.number] = process
        node.channel.say(START, number=process.number, rank=rank, terms=dict(self.terms), now_s=time.monotonic(), **order)
        return Child(rank, process, process, process), process.vitals

    def waitables(self) -> list[int]:
        """What becomes readable when another node says something."""
        found = [node.channel.fileno() for node in self._nodes] + [guest.fileno() for guest in self._guests]
        if self._listener is None or len(self._guests) >= MOST_GUESTS:  # it would stay readable: nobody is taken in
            return found
        return [*found, self._listener.fileno()]

    def turn(self, refusals: list[InputError] | None = None) -> None:
        """Read what has come, send what is waiting, and look who has gone silent. Nodes that were refused are added to `refusals`."""
        if self._listener is None:
            return
        self._accept()
        self._admit()
        now_s = time.monotonic()
        passed_s, self._looked_s = min(now_s - self._looked_s, MOST_GAP_S), now_s
        for node in list(self._nodes):
            node.silent_s += passed_s
            for what, detail in node.channel.heard():
                node.silent_s = 0.0
                self._hear(node, what, detail, refusals)
            if not node.channel.ended and node.silent_s >= self.stall_s:
                node.channel.ended = f"it has not answered for {node.silent_s:.1f} s"
            if node in self._nodes and node.channel.ended:
                self._lose(node)
        if now_s - self._beaten_s >= BEAT_S:
            self._beaten_s = now_s
            for node in self._nodes:
                node.channel.say(BEAT)
        self.flush()

    def flush(self) -> None:
        """Send what is waiting."""
        for node in self._nodes:
            node.channel.flush()

    def losses(self) -> list[Loss]:
        """The nodes that were lost since the last call."""
        found, self._losses = self._losses, []
        return found

    def leave_to_parent(self) -> None:
        """In a process that was forked: close the connections, which belong to the parent."""
        for node in self._nodes:
            node.channel.leave_to_parent()
        for guest in self._guests:
            guest.leave_to_parent()
        if self._listener is not None:
            os.close(self._listener.detach())

    def close(self, code: int, why: str = "") -> None:
        """Tell the other supervisors that the run is over, and with which exit status."""
        for node in self._nodes:
            node.channel.say(OVER, code=code, why=why)
        until_s = time.monotonic() + LEAVE_S
        for node in self._nodes:
            node.channel.close(max(until_s - time.monotonic(), 0.0))
        for guest in self._guests:
            guest.connection.close()
        if self._listener is not None:
            self._listener.close()
        self._nodes, self._guests, self._listener = [], [], None

    def _at(self, position: int) -> Node | None:
        return next((node for node in self._nodes if node.position == position), None)

    def _is_full(self) -> bool:
        return all(self.is_there(position) for position in range(len(self.sizes)))

    def _not_all(self) -> TooFewNodesError:
        missing = [str(position) for position in range(len(self.sizes)) if not self.is_there(position)]
        return TooFewNodesError(
            f"node{'s' if len(missing) > 1 else ''} {', '.join(missing)} of {len(self.sizes)} did not come within {self.timeout_s:g} s",
            where=f"{self._host}:{self._port}",
            fix="start the same command with its own --node on every node, and with the same --secret; check that this port is reachable, "
            "or give --rendezvous-timeout",
        )

    def _accept(self) -> None:
        assert self._listener is not None
        with suppress(OSError):
            while len(self._guests) < MOST_GUESTS:
                connection, (address, *_) = self._listener.accept()
                self._guests.append(Guest(connection, str(address), self.secret))

    def _admit(self) -> None:
        """Let those in that have proven themselves."""
        for guest in list(self._guests):
            try:
                found = guest.channel()
            except Refused as error:
                self._guests.remove(guest)
                guest.connection.close()
                self._tell_of_refusal(guest.address, str(error))
                continue
            if found is not None:
                self._guests.remove(guest)
                self._nodes.append(Node(found[0], guest.address, found[1]))

    def _tell_of_refusal(self, address: str, why: str) -> None:
        """Say that a connection was refused; of many the first are named, and then every 1,000 are counted."""
        self._num_refused += 1
        if self._num_refused <= MOST_LINES:
            _tell(f"meshwright: a connection from {address} was refused: {why}")
        if self._num_refused == MOST_LINES or self._num_refused % 1000 == 0:
            _tell(f"meshwright: {self._num_refused} connections were refused; the next ones are counted, and not named one by one")

    def _hear(self, node: Node, what: str, detail: Mapping[str, Any], refusals: list[InputError] | None) -> None:
        if what == FACTS:
            self._check(node, detail["facts"], refusals)
        elif what == ASKED:
            self.asked.append((node.number, int(detail["signal"])))
        elif what == BEAT:
            for number, stopped_s, silent_s in detail["vitals"]:
                if (process := node.processes.get(int(number))) is not None:
                    process.vitals.stopped_s, process.vitals.silent_s = float(stopped_s), float(silent_s)
        elif (process := node.processes.get(int(detail["number"]))) is None:
            return
        elif what == SAID:
            process.said.append((str(detail["what"]), str(detail["detail"])))
        elif what == STACKS:
            process.stacks.hear(str(detail["text"]), int(detail["question"]))
        elif what == ENDED:
            process.stacks.hear(str(detail["stacks"]))
            process.pid, process.exitcode = None, int(detail["code"]) if process.exitcode is None else process.exitcode
            del node.processes[process.number]

    def _check(self, node: Node, facts: Mapping[str, Any], refusals: list[InputError] | None) -> None:
        """Let a node take part if it would train the same run, and give it a position if one is free."""
        error = self._trouble(node, facts)
        if error is not None:
            self._send_away(node, REFUSED, what=str(error.what), fix=str(error.fix or ""))
            _tell(f"meshwright: {node.words} was refused: {error.what}")
            if refusals is not None:
                refusals.append(error)
            return
        for other in [one for one in self._nodes if one.number == node.number and one is not node]:
            self._send_away(other, REPLACED)
        node.is_checked = True
        if node.number < len(self.sizes) and self._at(node.number) is None and node.number != HERE:
            node.position = node.number
        else:
            self._fill_positions()
        seat = "is a spare" if node.position is None else f"has position {node.position}"
        _tell(f"meshwright: {node.words} has come, and {seat}")

    def _trouble(self, node: Node, facts: Mapping[str, Any]) -> InputError | None:
        told = {str(key): str(value) for key, value in facts.items()}
        if node.number == HERE:
            fix = "give every node its own --node: 0 leads"
            return InputError("another supervisor came as node 0, which leads", where=node.words, fix=fix)
        if told == self.facts:
            return None
        return disagreement(self.facts, {node.number: told}, "node")

    def _send_away(self, node: Node, what: str, /, **detail: str) -> None:
        node.channel.say(what, **detail)
        node.channel.flush()
        node.channel.ended = node.channel.ended or "another supervisor came in its place"
        self._lose(node)

    def _lose(self, node: Node) -> None:
        self._nodes.remove(node)
        node.channel.close()
        if not node.is_checked:
            return
        processes = [process for process in node.processes.values() if process.exitcode is None]
        for process in processes:
            process.exitcode = -int(signal.SIGKILL)
        message = f"{node.words} is lost: {node.channel.ended}"
        failure = Failure(reason="node", rank=None, message=message, noticed_s=time.monotonic(), from_outside=True)
        self._losses.append(Loss(failure=failure, processes=processes))
        if not processes:
            _tell(f"meshwright: {message}")
        self._fill_positions()

    def _fill_positions(self) -> None:
        """Let spares take positions that no node has. A node that came back keeps its own if it is free."""
        for position in range(len(self.sizes)) if self._has_met else ():
            spare = next((node for node in self._nodes if node.position is None and node.is_checked), None)
            if spare is not None and not self.is_there(position):
                spare.position = position


def _tell(text: str) -> None:
    """Print a line, if anybody still reads: a lost terminal must not end the run."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _numeric(host: str) -> str:
    """The host if it is an address and no name; otherwise an empty text."""
    with suppress(OSError):
        socket.inet_aton(host)
        return host if host.count(".") == 3 else ""
    return ""
