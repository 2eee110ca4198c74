"""The processes of one replica, as its supervisor sees them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from meshwright.train.elastic.pulse import Vitals, is_stopped
from meshwright.train.elastic.whereabouts import Expected
from meshwright.train.health.watch import START_SILENCE_S
from meshwright.train.launch import Child, Failure

READY_S = 600.0  # in which a process must have prepared itself


@dataclass(slots=True, eq=False)
class Group:
    """The processes of one replica."""

    number: int
    children: list[Child]
    vitals: list[Vitals]  # of the processes, in the same order; those of another node are looked after there
    started_s: float
    ready: dict[int, float] = field(default_factory=dict)  # processes that have prepared themselves, and when
    at_boundary: dict[int, int] = field(default_factory=dict)  # processes that wait at a step boundary, and the step

    @property
    def is_ready(self) -> bool:
        """Whether all its processes can join."""
        return len(self.ready) == len(self.children)

    def send(self, what: str, detail: str = "") -> None:
        """Tell all its processes something."""
        for child in self.children:
            with suppress(OSError):
                child.ask.send((what, detail))

    def living(self) -> Iterator[tuple[Child, Vitals]]:
        """Its processes that have not ended."""
        return ((child, vitals) for child, vitals in zip(self.children, self.vitals, strict=True) if child.process.is_alive())

    def expected(self) -> list[Expected]:
        """Its ranks that may still come to a new generation."""
        return [
            Expected(child.rank, child.process.pid, vitals.stacks, self.ready.get(child.rank, math.inf)) for child, vitals in self.living()
        ]

    def lifeless(self, stall_s: float, now_s: float, passed_s: float) -> Failure | None:
        """What is wrong with its processes that have not ended, `passed_s` after the last look; None if nothing is."""
        for child, vitals in self.living():  # others have ended well, before the rest of the run
            if child.process.pid is not None:
                vitals.look(is_stopped(child.process.pid), passed_s)
            who = f"rank {child.rank}"
            if vitals.stopped_s >= stall_s:
                message = f"{who} was stopped by a signal, and not continued for {vitals.stopped_s:.1f} s"
                return Failure(reason="hang", rank=child.rank, message=message, from_outside=True)
            if vitals.silent_s >= max(START_SILENCE_S, stall_s):
                return Failure(reason="hang", rank=child.rank, message=f"{who} gave no sign of life for {vitals.silent_s:.0f} s")
            if child.rank not in self.ready and now_s - self.started_s > READY_S:
                return Failure(reason="hang", rank=child.rank, message=f"{who} was not ready {READY_S:.0f} s after its start")
        return None
