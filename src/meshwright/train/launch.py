"""Ranks: which rank a process is, and how all ranks are started on one machine.

Under torchrun, or another launcher that sets the same variables, a process is one rank, and `meeting` finds the others. Otherwise this
process starts the ranks: it forks after torch is loaded, holds the store through which ranks find each other, and makes sure that all ranks
end when one of them, or this process, ends.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, Protocol

import torch.distributed as dist

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.health.watch import EXIT_HUNG
from meshwright.train.sealed import SealedStore

LOCALHOST = "127.0.0.1"
OPENED = "run/opened"  # in the store, once this start of the run writes to its folder: before, the folder may be another run's
EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130
MEETING_S = 60.0  # time in which ranks must find each other; `--rendezvous-timeout` changes it
AGREEMENT_S = 1800.0  # rank 0 may read a whole checkpoint before it decides
COLLECT_S = 3.0  # time in which other ranks may report why they failed, after one has failed
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # a program does not send itself these
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # prctl(2): a signal when the parent dies
LOST = (
    "Connection closed",
    "Connection reset",
    "Broken pipe",
    "Connection refused",
    "failed to recv",
    "Application timeout",
    "ncclRemoteError",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank among all ranks, and the store through which they find each other."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int  # on this machine
    store: dist.Store
    host: int | None = None  # the rank whose process hosts the store; None: a process of the launcher does
    has_parent: bool = False  # whether one of our processes started the ranks; that process records how they ended
    asked: Connection | None = None  # from that process: a message says that a rank has failed
    secret: bytes = field(default=b"", repr=False)  # shared by the ranks of this job, if they were given one
    name: str = ""  # of this start of the ranks
    port: int = 0  # at which ranks of several hosts meet; 0: they met in another way

    @property
    def control(self) -> SealedStore:
        """The same store for what decides how ranks go on: values of others are refused."""
        return SealedStore(self.store, self.secret, self.name)


class ReportedElsewhere(MeshwrightError):
    """A failure that another rank reports."""


class ConnectionLost(RuntimeError):
    """Other ranks have gone. The message names them as far as that is known; one of the remaining ranks reports it."""


def agreed(place: Place, what: str, decide: Callable[[], str]) -> str:
    """Return the decision of rank 0 on every rank. If it fails on rank 0, the other ranks end without their own message."""
    if place.rank:
        place.control.wait([f"agreed/{what}"], timedelta(seconds=AGREEMENT_S))
        verdict, _, message = place.control.get(f"agreed/{what}").decode().partition(" ")
        if verdict != "yes":
            raise ReportedElsewhere(message)
        return message
    try:
        decided = decide()
    except BaseException as error:
        place.control.set(f"agreed/{what}", f"no {error}")
        raise
    place.control.set(f"agreed/{what}", f"yes {decided}")
    return decided


def agreed_by_all(place: Place, what: str, trouble: str) -> str:
    """The first trouble that a rank reports, in the order of ranks, with that rank; empty if none has any. Every rank returns the same."""
    if place.rank:
        place.control.set(f"trouble/{what}/{place.rank}", trouble)

    def collect() -> str:
        keys = [f"trouble/{what}/{rank}" for rank in range(1, place.num_ranks)]
        if keys:
            place.control.wait(keys, timedelta(seconds=AGREEMENT_S))
        texts = [trouble, *(place.control.get(key).decode() for key in keys)]
        return next((f"{text} (found by rank {rank})" for rank, text in enumerate(texts) if text), "")

    return agreed(place, what, collect)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the ranks ended too early, as seen by the process that started them."""

    reason: str  # exception, input, exit, signal, hang, connection, node or interrupt
    rank: int | None  # the rank that ended first; None: all of them, or not known
    message: str  # in one line
    exit_code: int | None = None  # below 0: the signal that ended the rank
    noticed_s: float = 0.0  # by the monotonic clock
    from_outside: bool = False  # it says nothing about the program: a process was killed or stopped, or a connection was lost


class Process(Protocol):
    """The process of a rank: one that this process has forked, or one that the supervisor of another node has (`elastic.nodes`)."""

    @property
    def pid(self) -> int | None:
        """Its number on this machine; None: it is on another one, or was not started."""

    @property
    def exitcode(self) -> int | None:
        """How it ended; None: it has not."""

    @property
    def sentinel(self) -> int:
        """What becomes readable when it ends."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""

    def kill(self) -> None:
        """End it now."""

    def terminate(self) -> None:
        """Send it SIGTERM."""

    def join(self) -> None:
        """Wait until it has ended."""


class Hearing(Protocol):
    """What a rank says."""

    def fileno(self) -> int:
        """What becomes readable when it says something."""

    def poll(self) -> bool:
        """Whether it has said something."""

    def recv(self) -> Any:
        """What it said."""


class Telling(Protocol):
    """The way to tell a rank something."""

    def send(self, obj: Any) -> None:
        """Tell it."""


@dataclass(slots=True)
class Child:
    """The process of one rank, and the pipe through which it reports how it ended."""

    rank: int
    process: Process
    end: Hearing
    ask: Telling  # through which it learns that another rank has failed
    verdict: str = ""  # done, cause or effect; empty: it ended without a message
    message: str = ""
    was_ended: bool = False  # whether this process ended it
    ended_first: bool = False  # before all others, and not well

    def end_now(self) -> None:
        """Kill the process."""
        if self.process.is_alive():
            self.was_ended = True
            self.process.kill()
        self.process.join()

    def hear(self) -> None:
        """Read the message that the process sent at its end."""
        with suppress(EOFError, OSError):
            if not self.verdict and self.end.poll():
                self.verdict, self.message = self.end.recv()

    @property
    def is_silent(self) -> bool:
        """Whether it ended by itself without a message: it was killed, or exited unexpectedly."""
        return not (self.verdict or self.was_ended or self.process.is_alive() or self.process.exitcode == EXIT_HUNG)

    @property
    def signal(self) -> int:
        """The signal that ended the process, unless this process sent it; otherwise 0."""
        code = self.process.exitcode or 0
        return -code if code < 0 and not self.was_ended else 0

    @property
    def death(self) -> str:
        """How a process without a message ended."""
        if not self.signal:
            return f"rank {self.rank} ended with exit code {self.process.exitcode} before the end of the run, without a message"
        often = ": often because the machine is out of memory" if self.signal == signal.SIGKILL else ""
        return f"rank {self.rank} was killed by {signal.Signals(self.signal).name}{often}"


def run_ranks(num_ranks: int, body: Callable[[Place], object], failed: Callable[[Failure, SealedStore], None] | None = None) -> int:
    """Run `body` on `num_ranks` forked processes, and return one exit status for all of them.

    SIGTERM, SIGHUP and Ctrl-C are forwarded as SIGTERM: ranks then save and stop. A second Ctrl-C kills them. If the ranks end too early,
    `failed` is called once all of them have ended, with the reason and with the store that they used.
    """
    with suppress(OSError):
        sys.stdout.flush()  # otherwise every rank would print the buffered text
    failed_s: float | None = None
    secret = os.urandom(32)  # other users of this machine reach the store; the ranks are forked, so nobody else learns it
    with handing_on() as handing:
        children, asked = handing.children, handing.asked
        server = _start(num_ranks, body, handing, secret)
        try:
            failed_s = _untilfailure_of(children)
            if failed_s is not None:
                _tell(children)
                _collect(children, failed_s + COLLECT_S)
        finally:
            for child in children:
                child.end_now()
    code, failure = verdict_of(children, asked)
    if failure and failed:
        failed(replace(failure, noticed_s=failed_s or time.monotonic()), SealedStore(server, secret))
    return code


def _start(num_ranks: int, body: Callable[[Place], object], handing: Handing, secret: bytes = b"") -> dist.Store:
    """Fork the ranks, and return the store. Signals are blocked meanwhile, because a rank would handle them as its own."""
    listener = socket.create_server((LOCALHOST, 0))
    port = listener.getsockname()[1]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HANDED_ON)
    try:
        for rank in range(num_ranks):
            handing.add(forked(rank, partial(_placed, rank, num_ranks, port, body, secret), before))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return dist.TCPStore(LOCALHOST, port, num_ranks, True, timedelta(seconds=MEETING_S), False, master_listen_fd=listener.detach())


def forked(rank: int, body: Callable[[Connection, Connection], None], mask: set[int | signal.Signals]) -> Child:
    """A new process that runs `body` as a rank; it gets the pipes from and to this process. `mask` has the signals that it may receive."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    asked, ask = context.Pipe(duplex=False)
    process = context.Process(target=_rank_main, args=(rank, theirs, asked, body, os.getpid(), mask), daemon=True)
    process.start()
    theirs.close()
    asked.close()
    return Child(rank, process, ours, ask)


def _placed(
    rank: int, num_ranks: int, port: int, body: Callable[[Place], object], secret: bytes, asked: Connection, end: Connection
) -> None:
    """Run `body` as one of the ranks that this machine has from start to end."""
    store = dist.TCPStore(LOCALHOST, port, num_ranks, False, timedelta(seconds=MEETING_S))
    body(
        Place(
            rank=rank,
            num_ranks=num_ranks,
            local_rank=rank,
            num_local_ranks=num_ranks,
            store=store,
            has_parent=True,
            asked=asked,
            secret=secret,
        )
    )


@dataclass(slots=True)
class Handing:
    """The ranks that signals are handed on to, and the signals that came. A rank that is forked after a signal receives it as well."""

    children: list[Child] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    interrupts: Counter[int] = field(default_factory=Counter)  # how often each node received Ctrl-C; 0 is this one

    def add(self, child: Child) -> None:
        """Hand signals on to this rank too, and those that have come before it was added."""
        self.children.append(child)
        if self.asked:
            self._hand_on_to(child)

    def hand_on(self, number: int, frame: object) -> None:
        """The handler of these signals."""
        self.take(number, 0)

    def take(self, number: int, node: int) -> None:
        """Hand on a signal that a node received; a launcher may have sent the same one to all of them."""
        self.asked.append(number)
        if number == signal.SIGINT:
            self.interrupts[node] += 1
        for child in self.children:
            self._hand_on_to(child)

    @property
    def ends_at_once(self) -> bool:
        """Whether one and the same node received a second Ctrl-C."""
        return any(count > 1 for count in self.interrupts.values())

    def _hand_on_to(self, child: Child) -> None:
        if self.ends_at_once:
            child.end_now()
        elif child.process.is_alive():
            child.process.terminate()


@contextmanager
def handing_on() -> Iterator[Handing]:
    """Forward signals to the ranks as SIGTERM, and a second Ctrl-C as a kill; yields the ranks, none at first."""
    handing = Handing()
    heeded = [number for number in HANDED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, handing.hand_on) for number in heeded}
    try:
        yield handing
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _untilfailure_of(children: list[Child]) -> float | None:
    """Wait until all ranks have ended, or one has failed; returns when it failed."""
    running: dict[object, Child] = {child.process.sentinel: child for child in children}
    while running:
        for sentinel in wait([child.process.sentinel for child in running.values()]):
            child = running.pop(sentinel)
            child.process.join()
            child.hear()
            if child.process.exitcode != 0 or child.verdict != "done":
                child.ended_first = True
                return time.monotonic()
    return None


def _tell(children: list[Child]) -> None:
    """Tell the remaining ranks that one has failed: they write what they wait for."""
    for child in children:
        with suppress(OSError):
            if child.process.is_alive():
                child.ask.send("failed")


def _collect(children: list[Child], until_s: float) -> None:
    """Wait a moment for reports of the other ranks, then end them."""
    running = [child for child in children if child.process.is_alive()]
    while running and time.monotonic() < until_s:
        wait([child.process.sentinel for child in running], timeout=max(until_s - time.monotonic(), 0.0))
        running = [child for child in running if child.process.is_alive()]
    for child in running:
        child.end_now()
    for child in children:
        child.hear()


def verdict_of(children: list[Child], asked: Sequence[int]) -> tuple[int, Failure | None]:
    """The exit status, and why the ranks failed, which is printed once. `asked` are the signals by which they were asked to stop."""
    num_interrupts = asked.count(signal.SIGINT)
    if num_interrupts > 1 and any(child.was_ended for child in children):
        return EXIT_INTERRUPTED, Failure(
            reason="interrupt", rank=None, message="a second Ctrl-C ended the ranks at once, without a checkpoint"
        )
    if all((child.verdict == "done" or asked) and not child.process.exitcode for child in children):
        return EXIT_INTERRUPTED if num_interrupts else 0, None
    failure, texts = failure_of(children)
    for text in dict.fromkeys(texts):
        print(text, file=sys.stderr)
    code = EXIT_HUNG if failure.reason == "hang" else failure.exit_code if failure.reason in ("exception", "input") else EXIT_FAILED
    return code or EXIT_FAILED, failure


def failure_of(children: list[Child]) -> tuple[Failure, list[str]]:
    """Why the ranks failed, and what is printed.

    A rank that was killed before any other ended comes first: those that shared memory with it may fail in ways of their own. Then come
    ranks that gave a reason, then ranks without a message, then ranks that only noticed the failure of another.
    """
    causes = [child for child in children if child.verdict == "cause"]
    killed = next((child for child in children if child.ended_first and child.signal), None)
    if causes and killed is None:
        first = causes[0]
        is_input = first.process.exitcode == EXIT_INPUT
        failure = Failure(
            reason="input" if is_input else "exception", rank=first.rank, message=_summary(first.message), exit_code=first.process.exitcode
        )
        return failure, [child.message for child in causes]
    silent = sorted((child for child in children if child.is_silent), key=lambda child: (child is not killed, not child.signal))
    if killed is None and any(child.process.exitcode == EXIT_HUNG for child in children):  # the watchdog has printed why
        return Failure(
            reason="hang", rank=None, message="the ranks made no progress; the event `stall` says which rank waited for which"
        ), []
    if silent:
        dead = silent[0]
        failure = Failure(
            reason="signal" if dead.signal else "exit",
            rank=dead.rank,
            message=dead.death,
            exit_code=dead.process.exitcode,
            from_outside=dead.signal in FROM_OUTSIDE,
        )
        return failure, [f"meshwright: {dead.death}"]
    effects = [child for child in children if child.verdict == "effect"] or children[:1]
    failure = Failure(
        reason="connection",
        rank=effects[0].rank,
        message=_summary(effects[0].message),
        exit_code=effects[0].process.exitcode,
        from_outside=True,
    )
    return failure, [child.message for child in effects if child.message]


def _summary(message: str) -> str:
    """The first line of a rank's message, without the prefix `meshwright: `."""
    return message.partition("\n")[0].removeprefix("meshwright: ") or "no reason given"


def _rank_main(
    rank: int,
    end: Connection,
    asked: Connection,
    body: Callable[[Connection, Connection], None],
    parent: int,
    mask: set[int | signal.Signals],
) -> None:
    """The life of one rank, from its fork to its end. `mask` has the signals that the parent blocks."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent forwards it as SIGTERM
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    end_with(parent)
    try:
        body(asked, end)
    except MeshwrightError as error:
        end.send(("effect" if isinstance(error, ReportedElsewhere) else "cause", f"meshwright: {error}"))
        leave(EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED)
    except BaseException as error:
        is_cause, text = explain_failure(error, rank)
        end.send(("cause" if is_cause else "effect", text))
        leave(EXIT_FAILED)
    end.send(("done", ""))
    leave(0)


def explain_failure(error: BaseException, rank: int) -> tuple[bool, str]:
    """Whether an unexpected error is likely the cause of the failure, and its message.

    A lost connection is only how other ranks notice a failure.
    """
    if isinstance(error, ConnectionLost):
        return False, f"meshwright: {error}"
    summary = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if isinstance(error, RuntimeError) and any(word in str(error) for word in LOST):
        return False, f"meshwright: rank {rank} lost the connection to another rank"
    import traceback

    return True, f"meshwright: rank {rank} failed: {summary}\n{''.join(traceback.format_exception(error)).rstrip()}"


def leave(code: int) -> NoReturn:
    """End this process at once: threads of the store and of gloo have nothing left to do, and could hang."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """Ask the operating system to end this process when its parent ends for any reason (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_FAILED)
