"""Seconds of a step by part: measured with the host's clock for a CPU, and with events on the stream for a GPU.

A part is the time in which the device waits, not the time in which the host issues work. A collective that runs behind compute costs
nothing here; the wait for its rest is exposed time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

Spans = dict[str, list[float]]
Moment = float | torch.cuda.Event
Pair = tuple[str, torch.cuda.Event, torch.cuda.Event]  # of a part: its start and its end


class HostTimer:
    """Parts of a step on a device that runs synchronously, by the clock of the host."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: Spans = defaultdict(list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time inside the block as part `name`."""
        start = self._clock()
        try:
            yield
        finally:
            self._spans[name].append(self._clock() - start)

    def moment(self) -> float:
        """Now."""
        return time.perf_counter()

    def span(self, name: str, start: Moment, end: Moment) -> None:
        """Count the time between two moments as part `name`."""
        self._spans[name].append(between_s(start, end))

    def take(self) -> Spans:
        """Seconds of every span since the last call, by part."""
        taken, self._spans = self._spans, defaultdict(list)
        return taken

    def later(self) -> Callable[[], Spans]:
        """The same as a function that returns them later, for callers that must not wait now."""
        taken = self.take()
        return lambda: taken


class StreamTimer:
    """Parts of a step on a GPU: pairs of events on the current stream, read after the step.

    Read them when the next step is already queued: then the device has work, and nothing waits.
    """

    def __init__(self) -> None:
        self._pairs: list[Pair] = []
        self._between: list[Pair] = []  # of moments, which others hold too: these events are not used again
        self._free: list[torch.cuda.Event] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time that the stream spends inside the block as part `name`."""
        start, end = self._event(), self._event()
        start.record()
        try:
            yield
        finally:
            end.record()
            self._pairs.append((name, start, end))

    def moment(self) -> torch.cuda.Event:
        """When the stream has done what is queued now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def span(self, name: str, start: Moment, end: Moment) -> None:
        """Count the time between two moments as part `name`."""
        assert not isinstance(start, float) and not isinstance(end, float), "moments of this timer"
        self._between.append((name, start, end))

    def take(self) -> Spans:
        """Seconds of every span since the last call, by part; waits for the device."""
        return self.later()()

    def later(self) -> Callable[[], Spans]:
        """The same as a function that can be called once, later; it waits for the last of them."""
        pairs, self._pairs = self._pairs, []
        between, self._between = self._between, []
        return lambda: self._read(pairs, between)

    def _read(self, pairs: list[Pair], between: list[Pair]) -> Spans:
        spans: Spans = defaultdict(list)
        for name, start, end in between:
            spans[name].append(between_s(start, end))
        for name, start, end in pairs:
            end.synchronize()
            spans[name].append(start.elapsed_time(end) / 1e3)
            self._free += (start, end)
        return spans

    def _event(self) -> torch.cuda.Event:
        return self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)


Timer = HostTimer | StreamTimer


def between_s(start: Moment, end: Moment) -> float:
    """Seconds from one moment to another of the same timer; waits for a device that has not reached the second."""
    if isinstance(start, float) or isinstance(end, float):
        assert isinstance(start, float) and isinstance(end, float), "moments of one timer"
        return end - start
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def timer_for(device: torch.device) -> Timer:
    """The timer for `device`."""
    return StreamTimer() if device.type == "cuda" else HostTimer()
