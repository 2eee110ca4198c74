"""Ranks: where this process stands among them, and how all of them are started on one machine.

Under torchrun (or any launcher that sets its variables) a process is one rank. Otherwise this process starts the ranks itself: it forks
once torch is loaded, holds the store where they meet, and sees to it that none outlives the others or itself.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from meshwright.errors import InputError, MeshwrightError
from meshwright.train.health.watch import EXIT_HUNG

LOCALHOST = "127.0.0.1"
EXIT_INPUT, EXIT_FAILED, EXIT_INTERRUPTED = 2, 1, 130
MEETING_S = 60.0  # ranks must find each other within; `--rendezvous-timeout` is another value
AGREEMENT_S = 1800.0  # rank 0 may read a whole checkpoint before it decides
COLLECT_S = 3.0  # after one rank failed, others may still say why
HANDED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PR_SET_PDEATHSIG = 1  # prctl(2): a signal when the parent dies
LOST = ("Connection closed", "Connection reset", "Broken pipe", "Connection refused", "failed to recv", "Application timeout")
LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One rank among all, and the store where they meet."""

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int  # on this machine
    store: dist.Store
    has_parent: bool = False  # whether a process of ours started the ranks: it records how they ended


def meet(environment: Mapping[str, str], timeout_s: float = MEETING_S) -> Place:
    """This process's place, once the rendezvous that the launcher names has been reached."""
    missing = [name for name in LAUNCHER if name not in environment]
    if missing:
        raise InputError(f"{missing[0]} is not set", where="the environment", fix="start the ranks with torchrun")
    try:
        with _silence():
            store, rank, num_ranks = next(iter(rendezvous("env://", timeout=timedelta(seconds=timeout_s))))
    except (RuntimeError, ValueError, OSError) as error:
        raise _not_met(str(error), environment, timeout_s) from None
    return Place(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=int(environment.get("LOCAL_RANK", rank)),
        num_local_ranks=int(environment.get("LOCAL_WORLD_SIZE", num_ranks)),
        store=store,
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Standard error closed to what torch's own code writes there: its exception says the same."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _not_met(said: str, environment: Mapping[str, str], timeout_s: float) -> InputError:
    """The error of a rendezvous that did not come about: why, as far as torch tells."""
    where = f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}"
    if "EADDRINUSE" in said or "already in use" in said:
        return InputError(f"port {environment['MASTER_PORT']} is taken", where=where, fix="choose another port (--master-port)")
    joined = re.search(r"(\d+)/(\d+) clients joined", said)
    why = f"{joined[1]} of {joined[2]} ranks came" if joined else said.splitlines()[0] if said else "no reason given"
    fix = "start all ranks together, check that rank 0 runs there and that the port can be reached, or give --rendezvous-timeout"
    return InputError(f"the ranks did not meet within {timeout_s:g} s: {why}", where=where, fix=fix)


class ToldElsewhere(MeshwrightError):
    """A failure that another rank reports."""


def agreed(place: Place, what: str, decide: Callable[[], str]) -> str:
    """What rank 0 decides, on every rank; where it fails there, the others end without a word of their own."""
    if place.rank:
        place.store.wait([f"agreed/{what}"], timedelta(seconds=AGREEMENT_S))
        verdict, _, said = place.store.get(f"agreed/{what}").decode().partition(" ")
        if verdict != "yes":
            raise ToldElsewhere(said)
        return said
    try:
        decided = decide()
    except BaseException as error:
        place.store.set(f"agreed/{what}", f"no {error}")
        raise
    place.store.set(f"agreed/{what}", f"yes {decided}")
    return decided


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why the ranks ended before their run was over, as the process that started them knows it."""

    reason: str  # exception, input, exit, signal, hang, connection or interrupt
    rank: int | None  # that ended first; None: all of them, or nobody knows
    said: str  # in one line
    exit_code: int | None = None  # below 0: the signal that ended the rank


@dataclass(slots=True)
class _Child:
    """One rank's process, and the pipe on which it says how it ended."""

    rank: int
    process: ForkProcess
    end: Connection
    verdict: str = ""  # done, cause, effect; nothing: it ended without a word
    said: str = ""
    was_ended: bool = False  # by us

    def end_now(self) -> None:
        """End the process, whatever it does."""
        if self.process.is_alive():
            self.was_ended = True
            self.process.kill()
        self.process.join()

    def hear(self) -> None:
        """Read what the process said of its end."""
        with suppress(EOFError, OSError):
            if not self.verdict and self.end.poll():
                self.verdict, self.said = self.end.recv()

    @property
    def is_silent(self) -> bool:
        """Whether it ended by itself without a word: killed, or by an exit that nobody expected."""
        return not (self.verdict or self.was_ended or self.process.is_alive() or self.process.exitcode == EXIT_HUNG)

    @property
    def signal(self) -> int:
        """The signal that ended it, if that was not us; else 0."""
        code = self.process.exitcode or 0
        return -code if code < 0 and not self.was_ended else 0

    @property
    def death(self) -> str:
        """How a silent process ended."""
        if not self.signal:
            return f"rank {self.rank} ended with exit code {self.process.exitcode} before the run was over, without saying why"
        often = ": often the system, out of memory" if self.signal == signal.SIGKILL else ""
        return f"rank {self.rank} was ended by {signal.Signals(self.signal).name}{often}"


def run_ranks(num_ranks: int, body: Callable[[Place], None], failed: Callable[[Failure, dist.Store], None] | None = None) -> int:
    """Run `body` on `num_ranks` forked processes; the exit status of them all.

    SIGTERM, SIGHUP and Ctrl-C are handed on as SIGTERM, on which ranks save and stop; a second Ctrl-C ends them at once. Where they end
    before their time, `failed` is called with the reason, once all of them are gone, and with the store in which they met.
    """
    with suppress(OSError):
        sys.stdout.flush()  # or every rank would print what is still held back
    listener = socket.create_server((LOCALHOST, 0))
    port = listener.getsockname()[1]
    context = multiprocessing.get_context("fork")
    children = []
    for rank in range(num_ranks):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank_main, args=(rank, num_ranks, port, theirs, body, os.getpid()), daemon=True)
        process.start()
        theirs.close()
        children.append(_Child(rank, process, ours))
    server = dist.TCPStore(LOCALHOST, port, num_ranks, True, timedelta(seconds=MEETING_S), False, master_listen_fd=listener.detach())
    try:
        code, failure = _watched(children)
        for child in children:
            child.end_now()
        if failure and failed:
            failed(failure, server)
        return code
    finally:
        for child in children:
            child.end_now()
        del server


def _watched(children: list[_Child]) -> tuple[int, Failure | None]:
    asked: list[int] = []

    def hand_on(number: int, frame: object) -> None:
        asked.append(number)
        for child in children:
            if asked.count(signal.SIGINT) > 1:
                child.end_now()
            elif child.process.is_alive():
                child.process.terminate()

    heeded = [number for number in HANDED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, hand_on) for number in heeded}
    try:
        failed_s = _until_failure(children)
        if failed_s is not None:
            _collect(children, failed_s + COLLECT_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return _verdict(children, asked)


def _until_failure(children: list[_Child]) -> float | None:
    """Wait until all ranks have ended well, or one has not: then when."""
    running = {child.process.sentinel: child for child in children}
    while running:
        for sentinel in wait(list(running)):
            child = running.pop(sentinel)
            child.process.join()
            child.hear()
            if child.process.exitcode != 0 or child.verdict != "done":
                return time.monotonic()
    return None


def _collect(children: list[_Child], until_s: float) -> None:
    """Give the others a moment to say what they know, then end them."""
    running = [child for child in children if child.process.is_alive()]
    while running and time.monotonic() < until_s:
        wait([child.process.sentinel for child in running], timeout=max(until_s - time.monotonic(), 0.0))
        running = [child for child in running if child.process.is_alive()]
    for child in running:
        child.end_now()
    for child in children:
        child.hear()


def _verdict(children: list[_Child], asked: Sequence[int]) -> tuple[int, Failure | None]:
    """The exit status, and why the ranks failed, which is said once; `asked` are the signals that asked them to stop."""
    num_interrupts = asked.count(signal.SIGINT)
    if num_interrupts > 1 and any(child.was_ended for child in children):
        return EXIT_INTERRUPTED, Failure(reason="interrupt", rank=None, said="a second Ctrl-C ended the ranks at once, without a save")
    if all((child.verdict == "done" or asked) and not child.process.exitcode for child in children):
        return EXIT_INTERRUPTED if num_interrupts else 0, None
    failure, texts = _failure(children)
    for text in dict.fromkeys(texts):
        print(text, file=sys.stderr)
    causes = [child for child in children if child.verdict == "cause"]
    code = EXIT_HUNG if failure.reason == "hang" else causes[0].process.exitcode if causes else EXIT_FAILED
    return code or EXIT_FAILED, failure


def _failure(children: list[_Child]) -> tuple[Failure, list[str]]:
    """Why the ranks failed, and what is printed of it: who said why before who ended without a word, before who noticed."""
    causes = [child for child in children if child.verdict == "cause"]
    if causes:
        first = causes[0]
        is_input = first.process.exitcode == EXIT_INPUT
        failure = Failure(
            reason="input" if is_input else "exception", rank=first.rank, said=_summary(first.said), exit_code=first.process.exitcode
        )
        return failure, [child.said for child in causes]
    silent = sorted((child for child in children if child.is_silent), key=lambda child: not child.signal)
    if any(child.process.exitcode == EXIT_HUNG for child in children):  # the watchdog has said why
        return Failure(reason="hang", rank=None, said="the ranks stood still; the event `stall` says who waited for whom"), []
    if silent:
        dead = silent[0]
        reason = "signal" if dead.signal else "exit"
        return Failure(reason=reason, rank=dead.rank, said=dead.death, exit_code=dead.process.exitcode), [f"meshwright: {dead.death}"]
    effects = [child for child in children if child.verdict == "effect"] or children[:1]
    failure = Failure(reason="connection", rank=effects[0].rank, said=_summary(effects[0].said), exit_code=effects[0].process.exitcode)
    return failure, [child.said for child in effects if child.said]


def _summary(said: str) -> str:
    """The first line of what a rank said, without our name before it."""
    return said.partition("\n")[0].removeprefix("meshwright: ") or "nobody said why"


def _rank_main(rank: int, num_ranks: int, port: int, end: Connection, body: Callable[[Place], None], parent: int) -> None:
    """One rank, from its fork to its end."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent hands it on as SIGTERM
    end_with(parent)
    try:
        store = dist.TCPStore(LOCALHOST, port, num_ranks, False, timedelta(seconds=MEETING_S))
        body(Place(rank=rank, num_ranks=num_ranks, local_rank=rank, num_local_ranks=num_ranks, store=store, has_parent=True))
    except MeshwrightError as error:
        end.send(("effect" if isinstance(error, ToldElsewhere) else "cause", f"meshwright: {error}"))
        _leave(EXIT_INPUT if isinstance(error, InputError) else EXIT_FAILED)
    except BaseException as error:
        is_cause, text = explain_failure(error, rank)
        end.send(("cause" if is_cause else "effect", text))
        _leave(EXIT_FAILED)
    end.send(("done", ""))
    _leave(0)


def explain_failure(error: BaseException, rank: int) -> tuple[bool, str]:
    """Whether an unforeseen error is likely the cause, and what to say of it; a lost connection is only what others see of a failure."""
    said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
    if isinstance(error, RuntimeError) and any(word in str(error) for word in LOST):
        return False, f"meshwright: rank {rank} lost the connection to another rank"
    import traceback

    return True, f"meshwright: rank {rank} failed: {said}\n{''.join(traceback.format_exception(error)).rstrip()}"


def _leave(code: int) -> None:
    """End this process as it is: threads of the store and of gloo have nothing left to do, and may hang."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def end_with(parent: int) -> None:
    """Have the system end this process when its parent dies, whatever kills it (Linux alone can)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(EXIT_FAILED)
