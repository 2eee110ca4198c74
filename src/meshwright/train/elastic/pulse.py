"""Signs of life of a process, for the process that started it.

A rank that hangs is found by the watchdogs of the ranks that wait for it (`train.health.watch`). That leaves out a process that no other
waits for: the last replica, or one that prepares itself. So the supervisor looks at every process itself, in two ways. The kernel says that
a process is stopped (SIGSTOP): that is certain, however busy the machine is. And a process that runs counts up a number in memory which it
shares with the supervisor: that also finds a process whose threads are all blocked, but a long wait for a core looks the same, so
it takes much longer.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

PULSE_S = 0.5  # between two counts
MOST_GAP_S = 1.0  # between two looks that counts: if it was longer, the supervisor itself was stopped, and its ranks perhaps with it
STOPPED = "T"  # state in /proc: by a signal; "t" is a debugger, which ends its halt itself
NUMBER = struct.Struct("q")


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


@dataclass(slots=True)
class Vitals:
    """For how long a process has been stopped, and for how long it has not counted up its pulse."""

    pulse: Pulse = field(default_factory=Pulse)
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


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process. Where the kernel does not say so (it is not Linux), the pulse must do."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == STOPPED
    except (OSError, IndexError):
        return False
