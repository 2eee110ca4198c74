"""Where one operation of a step ends and the next begins: told by the marks that the trainer sets for its watchdog."""

from __future__ import annotations

from collections.abc import Callable

import torch

from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.timing import Spans
from meshwright.train.rehearse.stand_in import PART, Ledger


class Boundaries(Marks):
    """Marks that call whoever watches a step before each of its operations, and after the last."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        super().__init__()
        self.at: Callable[[], None] | None = None

    def do(self, what: str) -> None:
        """Say what is computed now."""
        super().do(what)
        if self.at:
            self.at()


class Stopwatch:
    """Seconds between boundaries, and of them what stood in for communication: by the ledger's clock, or by events on a GPU's stream."""

    def __init__(self, device: torch.device, ledger: Ledger) -> None:
        self.device, self.ledger = device, ledger
        self._times: list[float | torch.cuda.Event] = []
        self._spans: list[Callable[[], Spans]] = []

    def note(self) -> None:
        """One operation ends here and the next begins."""
        self._spans.append(self.ledger.timer.later())
        self._times.append(self._now())

    def read(self) -> list[tuple[float, float]]:
        """Of every operation between two boundaries: its seconds, and those of stand-ins within."""
        stand_ins = [sum(spans().get(PART, [])) for spans in self._spans]
        pairs = zip(self._times, self._times[1:], stand_ins[1:], strict=False)
        return [(_between(start, end) - stand_in_s, stand_in_s) for start, end, stand_in_s in pairs]

    def _now(self) -> float | torch.cuda.Event:
        if self.device.type != "cuda":
            return self.ledger.clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def _between(start: float | torch.cuda.Event, end: float | torch.cuda.Event) -> float:
    if isinstance(start, float) and isinstance(end, float):
        return end - start
    assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event), "one stopwatch has one clock"
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
