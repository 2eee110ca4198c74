"""Whether a process on a shared GPU goes on when another one is killed: two processes without NCCL and without meshwright, and a third that
comes afterwards.

MPS warns that a client which is killed while its kernels run may take others with it. If it does here, a run cannot go on either, and
that says nothing about the run.

    python control.py lives|dies DEVICE   # a child: it loads torch, says `ready`, and begins when a line comes on standard input
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

SPIN_CYCLES = 2 * 10**9  # a kernel of about a second, of which one always runs when its process is killed
SIZE = 512
BEFORE_S, AFTER_S = 1.0, 3.0
START_S = 40.0  # to load torch and open the GPU


@dataclass
class Child:
    """A child and what it has said, each line with its time."""

    process: subprocess.Popen[str]
    lines: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def started(cls, role: str, device: str, environment: Mapping[str, str]) -> Child:
        """A child that loads torch."""
        arguments = [sys.executable, "-u", __file__, role, device]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        child = cls(subprocess.Popen(arguments, text=True, env={**os.environ, **environment}, **pipes))
        threading.Thread(target=child._read, daemon=True).start()
        return child

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def has_said(self, what: str, until_s: float, since_s: float = 0.0) -> float | None:
        """When it said this, after `since_s`; None: not in time, or it has ended."""
        while time.monotonic() < until_s:
            for at_s, line in list(self.lines):
                if at_s >= since_s and line.startswith(what):
                    return at_s
            if self.process.poll() is not None and not any(line.startswith(what) for _, line in self.lines):
                return None
            time.sleep(0.01)
        return None

    def begin(self) -> None:
        """Let it open the device."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.write("begin\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """Kill it."""
        with suppress(OSError):
            self.process.kill()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5.0)

    @property
    def words(self) -> str:
        """How it ended, and its last lines."""
        code = self.process.poll()
        state = "still runs" if code is None else f"ended with {code}"
        return f"{state}; it said: {' | '.join(line for _, line in self.lines[-6:])}"


def tried(device: str, environment: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """What became of one process when the other was killed, and of a third that came afterwards; `trouble` is empty if all is well."""
    started_s = time.monotonic()
    until_s = started_s + limit_s
    children = [Child.started(role, device, environment) for role in ("lives", "dies", "lives")]
    lives, dies, comes = children
    try:
        for child in children:
            if child.has_said("ready", min(until_s, started_s + START_S)) is None:
                return {"trouble": f"a process could not load torch: {child.words}", "is_known": False}
        lives.begin()
        dies.begin()
        for child in (lives, dies):
            if child.has_said("works", min(until_s, started_s + START_S)) is None:
                return {"trouble": f"a process could not use the device: {child.words}", "is_known": False}
        time.sleep(BEFORE_S)
        killed_s = time.monotonic()
        dies.process.send_signal(signal.SIGKILL)
        while time.monotonic() < min(killed_s + AFTER_S, until_s) and lives.process.poll() is None:
            time.sleep(0.01)
        at_s = [at for at, line in list(lives.lines) if line.startswith("works") and at >= killed_s - BEFORE_S]
        pauses_s = [after - before for before, after in zip(at_s, [*at_s[1:], time.monotonic()], strict=True)]
        found: dict[str, Any] = {"longest_pause_s": round(max(pauses_s, default=float("inf")), 3), "is_known": True, "trouble": ""}
        if lives.process.poll() is not None or max(pauses_s, default=AFTER_S) > 0.8 * AFTER_S:
            found["trouble"] = f"when a process was killed, another one that shares the device with it did not go on: {lives.words}"
            return found
        began_s = time.monotonic()
        comes.begin()
        came_s = comes.has_said("works", min(until_s, began_s + START_S))
        if came_s is None:
            found["trouble"] = f"after a process was killed, no new one could use the device: {comes.words}"
        else:
            found["new_process_s"] = round(came_s - began_s, 3)
        return found
    finally:
        for child in children:
            child.end()


def main(role: str, name: str) -> None:
    """A child."""
    import torch

    print("ready")
    sys.stdin.readline()
    device = torch.device(name)
    ones = torch.ones(SIZE, SIZE, device=device)
    while True:
        if role == "dies" and device.type == "cuda":
            torch.cuda._sleep(SPIN_CYCLES)
        total = float((ones @ ones).sum())
        if total != SIZE**3:
            print(f"wrong: {total}")
            raise SystemExit(3)
        print("works")
        time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
