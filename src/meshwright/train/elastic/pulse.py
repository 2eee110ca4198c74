"""Signs of life of a process, for the process that started it.

A rank that hangs is found by the watchdogs of the ranks that wait for it (`train.health.watch`). That leaves out a process that no other
waits for: the last replica, or one that prepares itself. So the supervisor looks at every process itself, in two ways. The kernel says that
a process is stopped (SIGSTOP): that is certain, however busy the machine is. And a process that runs counts up a number in memory which it
shares with the supervisor: that also finds a process whose threads are all blocked, but a long wait for a core looks the same, so
it takes much longer.

A process that does not do what it should also says where it is: on a signal it writes the Python stacks of all its threads, even if none of
them can run Python code any more. A fault that ends it, such as SIGSEGV, writes them too.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PULSE_S = 0.5  # between two counts
MOST_GAP_S = 1.0  # between two looks that counts: if it was longer, the supervisor itself was stopped, and its ranks perhaps with it
STOPPED = "T"  # state in /proc: by a signal; "t" is a debugger, which ends its halt itself
NUMBER = struct.Struct("q")
ASKS = signal.SIGUSR2  # for the stacks of a process
STACKS_S = 1.0  # in which a process writes them
MOST_STACK_BYTES = 1 << 16
FATAL = "Fatal Python error"  # the first words of the stacks of a process that a fault has ended


class Pulse:
    """A number that one process counts up and another reads. Make it before the fork."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, NUMBER.size)

    def beat(self) -> None:
        """Count one up."""
        NUMBER.pack_into(self._memory, 0, self.count + 1)

    @property
    def count(self) -> int:
        """How often it was counted up."""
        return int(NUMBER.unpack_from(self._memory)[0])

    def start(self) -> None:
        """Count up from now on, in a thread."""
        threading.Thread(target=self._run, name="meshwright-pulse", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.beat()
            time.sleep(PULSE_S)


class Stacks:
    """Where the threads of one process are, for another one that asks. Make it before the fork."""

    def __init__(self) -> None:
        self._file = _unnamed_file()
        self._start = 0  # of what answers the newest question; earlier answers stand before it
        weakref.finalize(self, os.close, self._file)

    def start(self) -> None:
        """Write the stacks of this process at a fault, and whenever it is asked from now on; before, the signal would end it."""
        faulthandler.enable(file=self._file, all_threads=True)
        faulthandler.register(ASKS, file=self._file, all_threads=True)

    def ask(self, pid: int | None) -> None:
        """Ask the process for its stacks; it must have started to answer. After a fault its last words stay the answer."""
        size = os.fstat(self._file).st_size
        if FATAL not in self._written(size):
            self._start = size
        with suppress(OSError):
            if pid is not None:
                os.kill(pid, ASKS)

    def read(self, within_s: float = STACKS_S) -> str:
        """What the process has written since it was asked last, or at a fault; waits a little for the end of it."""
        until_s, before = time.monotonic() + within_s, -1
        while (size := os.fstat(self._file).st_size) != before or (size <= self._start and time.monotonic() < until_s):
            before = size
            time.sleep(within_s / 20)
        return self._written(size)

    def _written(self, size: int) -> str:
        """The newest part of the file, which has this size."""
        start = max(size - MOST_STACK_BYTES, self._start)
        return os.pread(self._file, size - start, start).decode(errors="replace")


def _unnamed_file() -> int:
    """A file without a name: in memory where that can be, because disks may be full or gone."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("meshwright-stacks")
    made, name = tempfile.mkstemp()
    os.unlink(name)
    return made


@dataclass(slots=True)
class Vitals:
    """For how long a process has been stopped, and for how long it has not counted up its pulse."""

    pulse: Pulse = field(default_factory=Pulse)
    stacks: Stacks = field(default_factory=Stacks)
    stopped_s: float = 0.0
    silent_s: float = 0.0
    _was_stopped: bool = False
    _count: int = -1

    def look(self, is_stopped: bool, passed_s: float) -> None:
        """Note what is seen `passed_s` after the last look. Time counts from the first look at which the process was stopped."""
        passed_s = min(passed_s, MOST_GAP_S)
        count = self.pulse.count
        self.stopped_s = self.stopped_s + passed_s if is_stopped and self._was_stopped else 0.0
        self.silent_s = self.silent_s + passed_s if count == self._count else 0.0
        self._was_stopped, self._count = is_stopped, count


def innermost(stacks: str) -> str:
    """Where the main thread is, by the stacks of a process: it is the last one, and its newest call comes first."""
    calls = [line.strip() for line in stacks.splitlines()]
    mains = [number for number, line in enumerate(calls) if line.startswith(("Current thread", "Thread"))]
    return _place(calls[mains[-1] + 1 :]) if mains else ""


def crashed(stacks: str) -> str:
    """Where a fault has ended a process, by its stacks: in the current thread, or elsewhere than in Python; empty if none has."""
    _, found, dump = stacks.rpartition(FATAL)
    _, is_python, current = dump.partition("\nCurrent thread")
    if not found or not is_python:
        return "a thread without Python calls" if found else ""
    return _place([line.strip() for line in current.partition("\n\n")[0].splitlines()]) or "a thread without Python calls"


def _place(calls: Sequence[str]) -> str:
    """The newest of these calls, and the newest one of this package."""
    frames = [line for line in calls if line.startswith("File")]
    own = [line for line in frames if "/meshwright/" in line]
    return ", called at ".join(dict.fromkeys([*frames[:1], *own[:1]]))


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process. Where the kernel does not say so (it is not Linux), the pulse must do."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == STOPPED
    except (OSError, IndexError):
        return False
