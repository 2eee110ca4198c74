"""Runs over NCCL that something befalls: each must end soon, name the cause, and leave nothing on the GPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import injected
from small_run import Command, Small, make_corpus, steps_of, train, until

from meshwright.record.run import read_run
from meshwright.train.health.watch import EXIT_HUNG

NUM_STEPS, SLOW_S = 8, 0.5
RANKS, LAYOUT = 4, "tp=2,pp=2,mbs=2"
ENDS_WITHIN_S = 10.0  # after the fault is known: at once for a death, after the watchdog's limit for a hang
STALL_S = 5.0
SPARE_BYTES = 256 * 2**20  # of the card's memory, which MPS may keep for itself; a rank takes twice as much
GPU_CLUSTER = "hgx-h200-ndr"


@dataclass(frozen=True)
class Fault:
    """What befalls a run, how soon it must be over, its exit status, and what it must say."""

    name: str
    strike: Callable[[Command, list[int]], None] | None
    code: int
    says: str
    status: str
    calls: str = ""  # what the flight recorders must say, as a pattern: which collective, who had entered it, who had not
    within_s: float = ENDS_WITHIN_S
    before: Callable[..., None] = injected.slow_steps
    with_: tuple[Any, ...] = (SLOW_S,)


def _signal(number: int, rank: int | None) -> Callable[[Command, list[int]], None]:
    return lambda command, ranks: os.kill(command.pid if rank is None else ranks[rank], number)


def missing(rank: int) -> str:
    """The pattern of a sentence that says in which call of which group other ranks wait for this one."""
    return (
        rf"calls: [a-z-]+ \d+ of the .*group of ranks [\d, ]+, \w+ \[[\d, ]*\]: ranks? [\d, ]+ had entered it, .*rank {rank} left no trace"
    )


FAULTS = (
    Fault("none: it starts, trains, evaluates, saves and ends", None, 0, "", "finished", within_s=60.0),
    Fault("SIGTERM", _signal(signal.SIGTERM, None), 0, "stopped and saved", "stopped"),
    Fault("rank 2 killed", _signal(signal.SIGKILL, 2), 1, "rank 2 was killed by SIGKILL", "failed", missing(2)),
    Fault("rank 0 killed", _signal(signal.SIGKILL, 0), 1, "rank 0 was killed by SIGKILL", "failed", missing(0)),
    Fault("rank 2 stopped", _signal(signal.SIGSTOP, 2), EXIT_HUNG, "rank 2 (", "failed", missing(2)),
    Fault("NaN on rank 1", None, 1, "is NaN or infinite: first on rank 1", "failed", "", 60.0, injected.no_number, (1, 3)),
)


def memory_bytes() -> int:
    """Memory of the first GPU that is taken, by the driver."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return int(found) * 2**20 if found.isdigit() else 0


def check(fault: Fault, is_gpu: bool) -> dict[str, Any]:
    """Run, strike, and see how it ended; `faults` of the row say what was wrong."""
    wrong: list[str] = []
    noticed_s: float | None = None
    with tempfile.TemporaryDirectory() as folder:
        small = Small(corpus=make_corpus(Path(folder) / "corpus"), **({"cluster": GPU_CLUSTER} if is_gpu else {}))
        plan = small.plan_file(Path(folder) / "plan.json", LAYOUT)
        before_bytes = memory_bytes() if is_gpu else 0
        given = ["--steps", str(NUM_STEPS), "--name", "a", "--checkpoint-every", "3", "--stall-timeout", str(STALL_S)]
        command = train(
            Path(folder), plan, *given, *(["--ranks-per-gpu", str(RANKS)] if is_gpu else []), before=fault.before, with_=fault.with_
        )
        run = Path(folder) / "runs" / "a"
        ranks = command.ranks(RANKS)
        if fault.strike:
            command.step(run, 2)
            fault.strike(command, ranks)
        struck_s = time.monotonic()
        if fault.code == EXIT_HUNG:  # what counts is how soon the ranks are gone once the watchdog has found the culprit
            until(lambda: fault.says in command.err, lambda: command.err, timeout_s=fault.within_s + 30.0)
            noticed_s = time.monotonic() - struck_s
            struck_s = time.monotonic()
        try:
            code = command.wait(fault.within_s + 30.0)
        except AssertionError as error:
            return {"faults": [str(error)[-1500:]]}
        took_s = time.monotonic() - struck_s
        if took_s > fault.within_s:
            wrong.append(f"it took {took_s:.1f} s to end")
        if code != fault.code:
            wrong.append(f"exit status {code}, not {fault.code}: {command.err[-800:]}")
        if fault.says not in command.err:
            wrong.append(f"standard error does not say {fault.says!r}: {command.err[-800:]}")
        if fault.calls and not re.search(fault.calls, command.err):
            wrong.append(f"standard error does not match {fault.calls!r}: {command.err[-800:]}")
        flights = [event.detail["flight"] for event in read_run(run).events if "flight" in event.detail]
        if (fault.calls and not flights) or any(f"calls: {words}" not in command.err for words in flights):
            wrong.append(f"the events say {flights} of the calls")
        found = read_run(run).header.status
        if found != fault.status:
            wrong.append(f"the run's status is {found}, not {fault.status}")
        until_s = time.monotonic() + 10.0
        while is_gpu and (left := memory_bytes() - before_bytes) > SPARE_BYTES and time.monotonic() < until_s:
            time.sleep(0.2)
        if is_gpu and left > SPARE_BYTES:
            wrong.append(f"{left / 2**20:.0f} MiB are left on the GPU")
        noticed = {"noticed_s": round(noticed_s, 2)} if noticed_s is not None else {}
        return {**noticed, "ended_s": round(took_s, 2), "steps": len(steps_of(run)), "faults": wrong}
