"""How ranks that a launcher started find each other, within a time limit, and without addresses of an earlier start.

torchrun keeps its key-value store when it restarts ranks, with the addresses of ranks that have ended. So the ranks of one start agree on a
new name, and store everything under this name. If they were given a secret, each proves that it has it before it is let in.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from meshwright.errors import InputError
from meshwright.train.launch import MEETING_S, Place
from meshwright.train.sealed import is_proven, proof

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ANSWER_S = 5.0  # a program that listens at the address must answer like a store within this time
LOOK_S = 0.02  # between two checks of what other ranks have done
MOST_STRANGERS = 1000  # greetings without a valid proof that one start bears


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of the store, and the time limit."""

    host: str
    port: int
    timeout_s: float
    until_s: float  # by the monotonic clock

    @property
    def left_s(self) -> float:
        """Seconds until the time limit; never quite 0, so that an answer that has arrived is still read."""
        return max(self.until_s - time.monotonic(), 0.1)

    def error(self, why: str) -> InputError:
        """The error for ranks that did not find each other in time."""
        fix = "start all ranks together, check that rank 0 runs there and that the port is reachable, or give --rendezvous-timeout"
        return InputError(f"the ranks did not meet within {self.timeout_s:g} s: {why}", where=f"{self.host}:{self.port}", fix=fix)


def meet(environment: Mapping[str, str], timeout_s: float = MEETING_S, secret: bytes = b"") -> Place:
    """This process's place among the ranks that the launcher started, once they have found each other and each has proven the secret."""
    missing = [name for name in VARIABLES if name not in environment]
    if missing:
        raise InputError(f"{missing[0]} is not set", where="the environment", fix="start the ranks with torchrun")
    address = Address(
        host=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT", most=65535),
        timeout_s=timeout_s,
        until_s=time.monotonic() + timeout_s,
    )
    own = {"LOCAL_RANK": environment["RANK"], "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"], **environment}
    numbers = {name: _number(own, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    is_launchers = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if numbers["RANK"] != 0 or is_launchers:
        _check_listener(address)
    try:
        with _silence():
            store, rank, num_ranks = next(iter(rendezvous("env://", timeout=timedelta(seconds=address.left_s))))
    except (RuntimeError, ValueError, OSError) as error:
        raise _not_met(str(error), address) from None
    name = _agreed_name(store, rank, num_ranks, address, secret)
    return Place(
        rank=rank,
        num_ranks=num_ranks,
        local_rank=numbers["LOCAL_RANK"],
        num_local_ranks=numbers["LOCAL_WORLD_SIZE"],
        host=None if is_launchers else 0,
        store=dist.PrefixStore(f"start/{name}", store),
        secret=secret,
        name=name,
        port=address.port,
    )


def _number(environment: Mapping[str, str], name: str, most: int = sys.maxsize) -> int:
    """The whole number in an environment variable, at most `most`."""
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= most):
        limit = f" from 0 to {most}" if most < sys.maxsize else ""
        raise InputError(f"{name} is {text!r}, not a whole number{limit}", where="the environment", fix="start the ranks with torchrun")
    return int(text)


def _check_listener(address: Address) -> None:
    """Wait until a program listens at the address; raise an error if it is not a store.

    torch's client would wait for its answer without limit.
    """
    while not _listens(address):
        if time.monotonic() > address.until_s:
            raise address.error("no process listens there")
        time.sleep(LOOK_S)
    answered = threading.Event()

    def ask() -> None:
        patience = timedelta(seconds=min(ANSWER_S, address.left_s))
        dist.TCPStore(address.host, address.port, is_master=False, timeout=patience, wait_for_workers=False)
        answered.set()

    def ask_quietly() -> None:
        try:
            ask()
        except (RuntimeError, ValueError, OSError):  # it answered something else
            return

    asking = threading.Thread(target=ask_quietly, name="meshwright-meet", daemon=True)
    with _silence():
        asking.start()
        asking.join(min(ANSWER_S, address.left_s) + 1.0)
    if not answered.is_set():
        raise InputError(
            f"another program listens on port {address.port}: it does not answer as rank 0 would",
            where=f"{address.host}:{address.port}",
            fix="choose another port (--master-port)",
        )


def _listens(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=address.left_s).close()
    except OSError:
        return False
    return True


def _agreed_name(store: dist.Store, rank: int, num_ranks: int, address: Address, secret: bytes = b"") -> str:
    """A name that is shared by the ranks of this start and by no others.

    Each rank writes a random word with a proof of the secret, and rank 0 answers each word with the name, proven too. Answers from an
    earlier start are stored under other words, so no rank can receive an old name. Then each rank proves that it has the name.
    """
    word = uuid.uuid4().hex
    if rank == 0:
        _welcome(store, num_ranks, word, address, secret)
        return word
    store.set(f"greeting/{rank}", f"{word} {proof(secret, 'greeting', rank, num_ranks, word)}")
    try:
        store.wait([f"welcome/{word}"], timedelta(seconds=address.left_s))
        name, _, given = store.get(f"welcome/{word}").decode(errors="replace").partition(" ")
        if not is_proven(given, secret, "welcome", rank, num_ranks, word, name):
            raise _stranger("the answer in the name of rank 0 does not fit the secret of this job", address)
        store.set(f"joined/{name}/{rank}", proof(secret, "joined", rank, num_ranks, name))
    except RuntimeError:
        raise address.error("rank 0 did not answer" + (", or does not have the same secret" if secret else "")) from None
    return name


def _welcome(store: dist.Store, num_ranks: int, name: str, address: Address, secret: bytes) -> None:
    """Answer the words of ranks that prove the secret, until every rank has proven that it received its answer.

    Words of an earlier start are answered too, which has no effect.
    """
    seen: dict[int, bytes] = {}
    answered: set[int] = set()
    strangers: dict[int, int] = {}  # how many greetings without a valid proof came in the name of a rank
    missing = set(range(1, num_ranks))
    while missing:
        for rank in sorted(missing):
            if store.check([f"greeting/{rank}"]) and (greeting := bytes(store.get(f"greeting/{rank}"))) != seen.get(rank):
                seen[rank] = greeting
                word, _, given = greeting.decode(errors="replace").partition(" ")
                if is_proven(given, secret, "greeting", rank, num_ranks, word):
                    strangers.pop(rank, None)
                    answered.add(rank)
                    store.set(f"welcome/{word}", f"{name} {proof(secret, 'welcome', rank, num_ranks, word, name)}")
                else:
                    strangers[rank] = strangers.get(rank, 0) + 1
            if rank in answered and _has_joined(store, rank, num_ranks, name, secret):
                missing.discard(rank)
        if sum(strangers.values()) > MOST_STRANGERS:
            raise _stranger(f"more than {MOST_STRANGERS} greetings do not fit the secret of this job", address)
        if missing and time.monotonic() > address.until_s:
            raise _not_all(num_ranks - len(missing), num_ranks, sorted(strangers), address)
        if missing:
            time.sleep(LOOK_S)


def _has_joined(store: dist.Store, rank: int, num_ranks: int, name: str, secret: bytes) -> bool:
    key = f"joined/{name}/{rank}"
    if not store.check([key]):
        return False
    return is_proven(bytes(store.get(key)).decode(errors="replace"), secret, "joined", rank, num_ranks, name)


def _not_all(num_joined: int, num_ranks: int, strangers: list[int], address: Address) -> InputError:
    """The error for ranks that did not come, or came with another secret or another number of ranks."""
    if not strangers:
        return address.error(f"{num_joined} of {num_ranks} ranks joined")
    shown = ", ".join(map(str, strangers[:8]))
    return _stranger(f"{num_joined} of {num_ranks} ranks joined; what came as rank {shown} does not fit the secret of this job", address)


def _stranger(why: str, address: Address) -> InputError:
    return InputError(
        why,
        where=f"{address.host}:{address.port}",
        fix="give all ranks the same secret (--secret) and the same number of ranks; if they have it, another process reaches this port: "
        "choose another one, and close the network to others",
    )


@contextmanager
def _silence() -> Iterator[None]:
    """Hide what torch's own code writes to standard error, because its exception says the same."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _not_met(reason: str, address: Address) -> InputError:
    """The error for a failed rendezvous, with torch's reason if it gives one."""
    if "EADDRINUSE" in reason or "already in use" in reason:
        return InputError(
            f"port {address.port} is taken", where=f"{address.host}:{address.port}", fix="choose another port (--master-port)"
        )
    joined = re.search(r"(\d+)/(\d+) clients joined", reason)
    return address.error(f"{joined[1]} of {joined[2]} ranks joined" if joined else reason.splitlines()[0] if reason else "no reason given")
