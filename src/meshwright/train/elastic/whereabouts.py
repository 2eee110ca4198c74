"""Where ranks are that do not come to a new generation, and where a fault has ended one, for the supervisor.

A rank that is late at the meeting is asked for its stacks (`pulse`), and given up at a limit if it has not come by then. Nothing here waits
for a rank that does not come: the supervisor has the others to look after.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from meshwright.train.elastic.pulse import STACKS_S, Stacks, crashed, innermost
from meshwright.train.launch import Failure

LATE_S = 5.0  # after which a rank that has not come says where it is


@dataclass(frozen=True, slots=True)
class Expected:
    """A rank of the newest generation whose process lives."""

    rank: int
    pid: int | None
    stacks: Stacks
    ready_s: float  # when it had prepared itself; infinite before


class Whereabouts:
    """Which ranks have come to the newest generation. `kept` keeps the stacks of a rank in a generation, and says where."""

    def __init__(self, kept: Callable[[int, int, str], str]) -> None:
        self.kept = kept
        self.generation = -1
        self._announced_s = math.inf
        self._come: set[int] = set()
        self._asked: dict[int, float] = {}  # ranks that were late, and when they were asked where they are

    def announced(self, generation: int) -> None:
        """Begin anew: a generation has just been announced."""
        self.generation, self._announced_s = generation, time.monotonic()
        self._come.clear()
        self._asked.clear()

    def has_come(self, rank: int, stacks: Stacks) -> None:
        """Note that a rank has come; if it was asked where it was, say that."""
        self._come.add(rank)
        if rank in self._asked:
            took_s = time.monotonic() - self._announced_s
            said = f"meshwright: rank {rank} came to generation {self.generation} after {took_s:.1f} s"
            print(f"{said}; it {self._place(rank, stacks.read())}", file=sys.stderr)

    def missing(self, expected: Iterable[Expected], limit_s: float, now_s: float) -> tuple[list[int], Failure] | None:
        """The ranks that have not come within `limit_s`, and why they are given up. Those that are late are asked where they are."""
        late = list[Expected]()
        for one in expected:
            waited_s = now_s - max(self._announced_s, one.ready_s)
            if waited_s < LATE_S or one.rank in self._come:
                continue
            if one.rank not in self._asked:
                self._asked[one.rank] = now_s
                one.stacks.ask(one.pid)
            if waited_s >= limit_s and now_s - self._asked[one.rank] >= STACKS_S:  # it had time to answer
                late.append(one)
        if not late:
            return None
        where = "; ".join(f"rank {one.rank} {self._place(one.rank, one.stacks.read(0.0))}" for one in late)
        message = f"{where}, and did not come to generation {self.generation} within {limit_s:.0f} s"
        failure = Failure(reason="hang", rank=late[0].rank if len(late) == 1 else None, message=message)
        return [one.rank for one in late], failure

    def of_crash(self, failure: Failure, rank: int, stacks: Stacks) -> Failure:
        """The end of a rank by a signal, with the place where it was if it was a fault of the rank, such as SIGSEGV."""
        written = stacks.read(0.0)
        where = crashed(written)
        return replace(failure, message=f"{failure.message}, in {where}{self._kept(rank, written)}") if where else failure

    def _place(self, rank: int, stacks: str) -> str:
        """Where a rank was when it was late, in words; its stacks are kept."""
        return f"was in {innermost(stacks)}{self._kept(rank, stacks)}" if stacks else "did not say where it was"

    def _kept(self, rank: int, stacks: str) -> str:
        name = self.kept(self.generation, rank, stacks)
        return f" ({name})" if name else ""
