"""What a test runs on forked ranks in place of a training."""

from __future__ import annotations

import os
import signal
import sys
import time

from meshwright.errors import InputError
from meshwright.train.launch import Place, agreed, run_ranks


def ranks_that(arguments: list[str]) -> int:
    """Two ranks that each do what the first argument says; the exit status of both."""
    return run_ranks(2, BODIES[arguments[0]])


def _meet(place: Place) -> None:
    place.store.set(f"here/{place.rank}", b"1")
    place.store.wait([f"here/{1 - place.rank}"])


def _finish(place: Place) -> None:
    _meet(place)
    print(f"rank {place.rank} of {place.num_ranks}", file=sys.stderr)


def _refuse(place: Place) -> None:
    def refuse() -> str:
        raise InputError("no such thing", where="the input", fix="give another")

    agreed(place, "thing", refuse)


def _agree(place: Place) -> None:
    assert agreed(place, "thing", lambda: "the one thing") == "the one thing"


def _break(place: Place) -> None:
    _meet(place)
    if place.rank == 1:
        raise ZeroDivisionError("division by zero")
    time.sleep(1e6)


def _lose(place: Place) -> None:
    _meet(place)
    if place.rank == 0:
        raise RuntimeError("Connection closed by peer")
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _lose_memory(place: Place) -> None:
    _meet(place)
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def _ignore(place: Place) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _meet(place)
    print("ready", flush=True)
    time.sleep(1e6)


BODIES = {
    "finish": _finish,
    "refuse": _refuse,
    "agree": _agree,
    "break": _break,
    "lose": _lose,
    "lose memory": _lose_memory,
    "ignore": _ignore,
}
