"""Ranks on the hosts of a lab: which rank sits where, with which command and environment it starts, and that all end together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from meshwright.errors import InputError
from meshwright.lab.description import Host, Lab
from meshwright.lab.guard import guarded
from meshwright.lab.network import Command
from meshwright.plan.plan import Plan
from meshwright.plan.rankmap import rank_map

PORT = 29500  # where rank 0 listens; the namespaces of a lab have ports of their own
LAST_WORDS_S = 60.0  # for the other ranks to say what they saw, after one has failed
ENDING_S = 10.0  # after they were asked to end
INTERRUPTED = 130
# In a UTS namespace of its own, so that records name the host; and, where the system lets it, with a program at the same addresses on every
# rank. Ranks share cores: what a core has learned about the branches of one rank is then of use to the next. Eight ranks on two cores took
# 15 to 21 % more core time for the same steps with addresses of their own (docs/lab.md).
ON_HOST = 'hostname "$0"; setarch -R true 2>/dev/null && set -- setarch -R "$@"; exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One rank: its host, its command as it is started from outside, and what it adds to the environment."""

    rank: int
    host: Host
    command: Command
    environment: Mapping[str, str]


def in_order(num_ranks: int) -> tuple[int, ...]:
    """The place of every rank if hosts and racks are filled in rank order."""
    return tuple(range(num_ranks))


def shuffled(num_ranks: int, seed: int) -> tuple[int, ...]:
    """Places in random order."""
    return tuple(int(slot) for slot in np.random.default_rng(seed).permutation(num_ranks))


def planned_slots(plan: Plan, lab: Lab) -> tuple[int, ...]:
    """The place of every rank as the plan's rank map says; an error if the lab has no such place."""
    places = rank_map(plan.layout, plan.cluster)
    columns = places.columns
    node = columns["tray"] if "tray" in columns else columns["node"]
    racks = columns.get("rack", np.zeros_like(node))
    gpus = columns["gpu"]
    sizes = (("racks", racks, lab.num_racks), ("ranks on a host", gpus, lab.num_ranks))
    hosts = ("hosts in a rack", node, lab.num_hosts) if "rack" in columns else ("hosts", node, lab.num_racks * lab.num_hosts)
    for what, column, most in (*sizes, hosts):
        if len(column) and int(column.max()) >= most:
            raise InputError(
                f"the plan needs {int(column.max()) + 1} {what}, and lab {lab.name!r} has {most}",
                where=f"plan {plan.name}, cluster {plan.cluster.name}",
                fix="plan for the lab's own description (`meshwright lab status` says where it is)",
            )
    return tuple(int(slot) for slot in (racks * lab.num_hosts + node) * lab.num_ranks + gpus)


def check_slots(slots: Sequence[int], lab: Lab) -> None:
    """Raise an error if ranks share a place, or a place does not exist."""
    if not slots:
        raise InputError("no ranks to start", where="--ranks", fix="give 1 or more")
    wrong = [slot for slot in slots if not 0 <= slot < lab.num_slots]
    if wrong or len(set(slots)) < len(slots):
        what = f"lab {lab.name!r} has no place {wrong[0]}" if wrong else "two ranks have the same place"
        raise InputError(what, where="the places of ranks", fix=f"use each of 0 to {lab.num_slots - 1} at most once")


def starts(lab: Lab, command: Sequence[str], slots: Sequence[int], num_cores: int, port: int = PORT) -> list[Start]:
    """What is started for each rank: rank i at place `slots[i]`."""
    check_slots(slots, lab)
    hosts = [lab.host_at(slot) for slot in slots]
    common = {
        "WORLD_SIZE": str(len(slots)),
        "MASTER_ADDR": lab.address(hosts[0]),
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": lab.interface,
        "OMP_NUM_THREADS": str(max(num_cores // len(slots), 1)),
        "MESHWRIGHT_LAB": lab.name,
    }
    found = []
    for rank, host in enumerate(hosts):
        on_host = [other for other, place in enumerate(hosts) if place == host]
        own = {"RANK": rank, "LOCAL_RANK": on_host.index(rank), "LOCAL_WORLD_SIZE": len(on_host), "GROUP_RANK": lab.hosts.index(host)}
        environment = {**common, **{key: str(value) for key, value in own.items()}, "MESHWRIGHT_HOST": str(host)}
        found.append(Start(rank=rank, host=host, command=on_host_command(lab, host, command), environment=environment))
    return found


def on_host_command(lab: Lab, host: Host, command: Sequence[str]) -> Command:
    """A command as it is started on a host: in its network, under its name, and killed if the process that started it dies."""
    words = [sys.executable, "-m", "meshwright", *command[1:]] if command[:1] == ["meshwright"] else list(command)
    enter = ("nsenter", f"--net=/run/netns/{lab.namespace(host)}", "unshare", "--uts")
    return "setpriv", "--pdeathsig", "KILL", *enter, "sh", "-c", ON_HOST, str(host), *words


def run(begun: Sequence[Start], log: Path | None = None) -> int:
    """Start all ranks, wait for them, and return one exit status: that of the first rank that failed, or 0.

    What rank 0 prints is passed on as it is, what the others print with their host and rank before each line; or all goes to a `log`.
    Ctrl-C and SIGTERM are forwarded as SIGTERM; a second one kills the ranks. If this process is killed, so are the ranks and all that they
    have started.
    """
    children: list[subprocess.Popen[str]] = []
    with guarded(), _forwarding(children) as asked, open(log or os.devnull, "ab") as file:
        try:
            for start in begun:
                pipe = file.fileno() if log else None if start.rank == 0 else subprocess.PIPE
                # A process group of its own: Ctrl-C on the terminal would otherwise reach the ranks too, and twice.
                child = subprocess.Popen(
                    start.command,
                    env={**os.environ, **start.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=None if pipe is None else subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    process_group=0,
                )
                children.append(child)
            readers = [_reader(start, child.stdout) for start, child in zip(begun, children, strict=True) if child.stdout]
            code = _wait(children)
        finally:
            for child in children:
                _signal(child, signal.SIGKILL)  # also what a rank that has ended left running
    for reader in readers:
        reader.join(ENDING_S)
    return INTERRUPTED if asked and code else code


@contextmanager
def _forwarding(children: Sequence[subprocess.Popen[str]]) -> Iterator[list[int]]:
    """Forward signals to the ranks; yields the signals that came."""
    asked: list[int] = []

    def forward(number: int, frame: object) -> None:
        asked.append(number)
        for child in children:
            _signal(child, signal.SIGTERM if len(asked) == 1 else signal.SIGKILL)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(children: Sequence[subprocess.Popen[str]]) -> int:
    """Wait for all; if one fails, the others get a while to end by themselves, then are asked to, then are killed."""
    first, failed_s = 0, 0.0
    while any(child.poll() is None for child in children):
        codes = [code for child in children if (code := child.poll())]
        if codes and not first:
            first, failed_s = codes[0], time.monotonic()
        late_s = time.monotonic() - failed_s if first else 0.0
        if late_s > LAST_WORDS_S:
            _end(children, signal.SIGTERM if late_s < LAST_WORDS_S + ENDING_S else signal.SIGKILL)
        time.sleep(0.05)
    code = first or next((child.returncode for child in children if child.returncode), 0)
    return 128 - code if code < 0 else code


def _end(children: Sequence[subprocess.Popen[str]], number: int) -> None:
    for child in children:
        if child.poll() is None:
            _signal(child, number)


def _signal(child: subprocess.Popen[str], number: int) -> None:
    """Send a signal to a rank and to what it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _reader(start: Start, stream: IO[str]) -> threading.Thread:
    """A thread that passes on what a rank prints, line by line."""

    def read() -> None:
        with stream, suppress(OSError, ValueError):
            for line in stream:
                print(f"[{start.host} rank {start.rank}] {line}", end="", file=sys.stderr, flush=True)

    reader = threading.Thread(target=read, name=f"lab-rank-{start.rank}", daemon=True)
    reader.start()
    return reader
