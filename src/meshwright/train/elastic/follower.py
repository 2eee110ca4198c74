"""The supervisor of a node that does not lead the run: it starts and ends ranks as the leading one says, and tells it what becomes of them.

It decides nothing by itself, with one exception: when the leading supervisor is gone, or has not answered for a time, it ends its ranks.
That time is shorter than the one after which this node counts as lost there, so that no rank goes on that others have given up. Then it
tries to join again: the network may come back, or the leading supervisor may be started again.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.elastic import nodes
from meshwright.train.elastic.channel import Channel, Refused, joined
from meshwright.train.elastic.interface import use_interface_of
from meshwright.train.elastic.member import GENERATION, Member
from meshwright.train.elastic.pulse import MOST_GAP_S, STACKS_S, Vitals, is_stopped
from meshwright.train.launch import EXIT_FAILED, EXIT_INPUT, HANDED_ON, Child, forked

SHARE = 0.8  # of the limit after which this node is lost to the others
PREPARING_S = 600.0  # for which the leading supervisor may be busy while no rank runs here
TRY_S = 0.5  # between two attempts to join


@dataclass(slots=True)
class Worker:
    """One process that was started here."""

    child: Child
    vitals: Vitals = field(default_factory=Vitals)
    asked_s: float = math.inf  # when it was asked for its stacks, which have not been sent yet
    question: int = 0  # the number of the leading supervisor's newest question for them


class Follower:
    """The ranks of this node. `body` makes what a rank does, from the terms of the run; `host` is where the store of the ranks is."""

    def __init__(
        self, channel: Channel, host: str, body: Callable[[Mapping[str, Any]], Callable[[Member], None]], stall_s: float, asked: list[int]
    ) -> None:
        self.channel, self.host, self.body, self.stall_s = channel, host, body, stall_s
        self.asked = asked  # signals that were received and not passed on yet
        self.workers: dict[int, Worker] = {}
        self.code: int | None = None
        self._silent_s = 0.0
        self._looked_s = self._beaten_s = time.monotonic()

    def run(self) -> int | None:
        """Do as the leading supervisor says until the run is over; the exit status, or None if the connection was lost before."""
        try:
            while self.code is None and not self.channel.ended:
                self._turn()
        finally:
            for worker in self.workers.values():
                worker.child.end_now()
            self.channel.close()
        return self.code

    def _turn(self) -> None:
        children = [worker.child for worker in self.workers.values()]
        wait({self.channel.fileno(), *(one for child in children for one in (child.process.sentinel, child.end.fileno()))}, nodes.LOOK_S)
        messages = self.channel.heard()
        for what, detail in messages:
            self._hear(what, detail)
        for number in list(self.workers):
            self._listen(number)
        now_s = time.monotonic()
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        self._silent_s = 0.0 if messages else self._silent_s + min(passed_s, MOST_GAP_S)
        if self._silent_s >= (SHARE * self.stall_s if self.workers else PREPARING_S):
            self.channel.ended = self.channel.ended or f"it has not answered for {self._silent_s:.1f} s"
        self._pass_on_signals()
        if now_s - self._beaten_s >= nodes.BEAT_S:
            self._beat(now_s)
        self.channel.flush()

    def _hear(self, what: str, detail: Mapping[str, Any]) -> None:
        if what == nodes.OVER:
            self.code = int(detail["code"])
            if self.code:
                _tell(f"meshwright: the run ended with exit status {self.code}; node 0 says why")
        elif what == nodes.REFUSED:
            _tell(f"meshwright: this node was refused: {detail['what']}\n  fix: {detail['fix']}")
            self.code = EXIT_INPUT
        elif what == nodes.REPLACED:
            _tell("meshwright: another supervisor came with the number of this node, and takes its place")
            self.code = EXIT_INPUT
        elif what == nodes.START:
            self._start(detail)
        elif what in (nodes.TELL, nodes.END, nodes.ASK, nodes.STACKS) and (worker := self.workers.get(int(detail["number"]))) is not None:
            if what == nodes.END:
                worker.child.end_now()
            elif what == nodes.ASK:
                worker.child.process.terminate()
            elif what == nodes.STACKS:
                worker.vitals.stacks.ask(worker.child.process.pid)
                worker.asked_s, worker.question = time.monotonic(), int(detail["question"])
            else:
                with suppress(OSError):
                    worker.child.ask.send(_by_own_clock(detail))

    def _start(self, order: Mapping[str, Any]) -> None:
        """Fork a rank. Signals are blocked meanwhile, because it would handle them as its own."""
        after = order["terms"].get("after")
        if after:
            after["noticed_s"] += time.monotonic() - order["now_s"]
        body, vitals = self.body(order["terms"]), Vitals()

        def life(heard: Any, said: Any) -> None:
            self.channel.leave_to_parent()
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            body(
                Member(
                    replica=order["replica"],
                    seat=order["seat"],
                    num_seats=order["num_seats"],
                    host=self.host,
                    port=order["port"],
                    secret=bytes.fromhex(order["secret"]),
                    began_s=time.monotonic() - order["elapsed_s"],
                    local_rank=order["local_rank"],
                    num_sharing=order["num_sharing"],
                    has_others=True,
                    heard=heard,
                    said=said,
                    pulse=vitals.pulse,
                    stacks=vitals.stacks,
                )
            )

        before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
        try:
            worker = Worker(forked(order["rank"], life, before), vitals)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.workers[order["number"]] = worker

    def _listen(self, number: int) -> None:
        """Pass on what a rank says, and how it ended."""
        child, stacks = self.workers[number].child, self.workers[number].vitals.stacks
        is_alive = child.process.is_alive()  # asked first: what it said before its end is still read below
        with suppress(EOFError, OSError):
            while child.end.poll():
                what, detail = child.end.recv()
                self.channel.say(nodes.SAID, number=number, what=what, detail=detail)
        if not is_alive:
            child.process.join()
            self.channel.say(nodes.ENDED, number=number, code=child.process.exitcode, stacks=stacks.read(0.0))
            del self.workers[number]

    def _beat(self, now_s: float) -> None:
        """Say that this node is there, and for how long its ranks have been stopped or silent."""
        passed_s, self._beaten_s = now_s - self._beaten_s, now_s
        for worker in self.workers.values():
            if worker.child.process.pid is not None:
                worker.vitals.look(is_stopped(worker.child.process.pid), passed_s)
        found = [(number, worker.vitals.stopped_s, worker.vitals.silent_s) for number, worker in self.workers.items()]
        self.channel.say(nodes.BEAT, vitals=found)
        for number, worker in self.workers.items():
            if now_s - worker.asked_s >= STACKS_S:
                worker.asked_s = math.inf
                self.channel.say(nodes.STACKS, number=number, question=worker.question, text=worker.vitals.stacks.read(0.0))

    def _pass_on_signals(self) -> None:
        """Ask the leading supervisor to let the run save and stop; SIGUSR1 is a notice to the ranks here that this node will go."""
        while self.asked:
            number = self.asked.pop(0)
            if number == signal.SIGUSR1:
                for worker in self.workers.values():
                    if worker.child.process.pid is not None:
                        os.kill(worker.child.process.pid, signal.SIGUSR1)
            else:
                self.channel.say(nodes.ASKED, signal=number)


def _tell(text: str) -> None:
    """Print a line, if anybody still reads: a lost terminal must not end the ranks."""
    with suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _by_own_clock(detail: Mapping[str, Any]) -> tuple[str, ...]:
    """What a rank is told, with times by the monotonic clock of this machine."""
    what, *rest = detail["words"]
    if what == GENERATION and rest:
        entry = json.loads(rest[0])
        if entry["incident"]:
            entry["incident"]["noticed_s"] += time.monotonic() - detail["now_s"]
        rest = [json.dumps(entry)]
    return (what, *rest)


@contextmanager
def asked_by_signals() -> Iterator[list[int]]:
    """The signals that this process receives from now on."""
    asked: list[int] = []
    heeded = [number for number in (*HANDED_ON, signal.SIGUSR1) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda one, _: asked.append(one)) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the supervisors of a run meet, and what this one brings along."""

    host: str
    port: int
    node: int
    secret: bytes = field(repr=False)
    timeout_s: float
    facts: Mapping[str, str]


def follow(meeting: Meeting, body: Callable[[Mapping[str, Any]], Callable[[Member], None]], stall_s: float) -> int:
    """Follow the leading supervisor until the run is over, and join again when the connection is lost; the exit status."""
    with asked_by_signals() as asked:
        while True:
            channel = _joined(meeting, asked)
            if channel is None:
                return EXIT_FAILED
            use_interface_of(channel.own_host)
            channel.say(nodes.FACTS, facts=dict(meeting.facts))
            code = Follower(channel, meeting.host, body, stall_s, asked).run()
            if code is not None:
                return code
            _tell(
                f"meshwright: node {meeting.node} lost the leading supervisor ({channel.ended}) and ended its ranks; trying to join again"
            )


def _joined(meeting: Meeting, asked: list[int]) -> Channel | None:
    """The channel to the leading supervisor; None if a signal ended the attempts, an error if nobody answers in time."""
    until_s, why = time.monotonic() + meeting.timeout_s, "nobody listens there"
    while not any(number in HANDED_ON for number in asked):
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise MeshwrightError(
                f"node {meeting.node} did not find the leading supervisor within {meeting.timeout_s:g} s: {why}",
                where=f"{meeting.host}:{meeting.port}",
                fix="start node 0, check that this port of it is reachable and that all nodes have the same --secret, "
                "or give --rendezvous-timeout",
            )
        try:
            return joined(meeting.host, meeting.port, meeting.node, meeting.secret, min(left_s, 10.0))
        except Refused as error:
            why = str(error)
        except OSError as error:
            why = error.strerror or str(error)
        time.sleep(TRY_S)
    return None


def report_trouble(meeting: Meeting, error: InputError) -> None:
    """Tell the leading supervisor what this node alone finds wrong."""
    with suppress(MeshwrightError):
        channel = _joined(meeting, [])
        if channel is not None:
            channel.say(nodes.FACTS, facts={"trouble": f"{error.what} ({error.where})"})
            channel.close(nodes.LEAVE_S)
