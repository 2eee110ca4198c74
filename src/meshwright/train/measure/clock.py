"""Seconds of work on a device: events on the stream of a GPU, and on processors what the work takes of a core.

Processes that share cores are timed by the cores' time they use, not by the wall's: what else runs on the machine does not count, and
with all cores busy the one follows from the other (`shared`).
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import torch

Work = Callable[[], object]
LEAST_ROUNDS = 3
MOST_ROUNDS = 400


def interleaved_s(works: Sequence[Work], device: torch.device, budget_s: float) -> list[float]:
    """Seconds of each piece of work, all of them taken in turn for about `budget_s`: the median on a GPU, the mean on a processor.

    In turn, because a GPU at its power cap runs as fast as the mix allows: a product alone would heat the chip otherwise than it does
    among its neighbours.
    """
    for work in works:  # first calls choose algorithms and allocate
        work()
    synchronize(device)
    started_s = time.perf_counter()
    for work in works:
        work()
    synchronize(device)
    once_s = max(time.perf_counter() - started_s, 1e-7)
    num_rounds = min(max(int(budget_s / once_s), LEAST_ROUNDS), MOST_ROUNDS)
    timed = _by_events if device.type == "cuda" else _by_clock
    return timed(works, num_rounds)


def _by_events(works: Sequence[Work], num_rounds: int) -> list[float]:
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(len(works) + 1)] for _ in range(num_rounds)]
    for row in marks:
        row[0].record()
        for work, mark in zip(works, row[1:], strict=True):
            work()
            mark.record()
    torch.cuda.synchronize()
    return [statistics.median(row[i].elapsed_time(row[i + 1]) for row in marks) / 1e3 for i in range(len(works))]


def _by_clock(works: Sequence[Work], num_rounds: int) -> list[float]:
    sums = [0.0] * len(works)
    for _ in range(num_rounds):
        for i, work in enumerate(works):
            started_s = now_s()
            work()
            sums[i] += now_s() - started_s
    return [total / num_rounds for total in sums]


_crowd: float | None = None  # processes on a core, where they take turns; None: time is the wall's


def share_cores(num_processes: int, num_cores: int) -> None:
    """Say how many processes share the cores. Where each has one or more of its own, time stays the wall's."""
    global _crowd
    _crowd = num_processes / num_cores if num_processes >= num_cores else None


def now_s() -> float:
    """A processor's clock: seconds of the wall, as they would pass if nothing but these processes ran."""
    return time.perf_counter() if _crowd is None else time.process_time() * _crowd


def seconds_of(work: Work, device: torch.device, budget_s: float) -> float:
    """Seconds of one piece of work, repeated for about `budget_s`."""
    return interleaved_s([work], device, budget_s)[0]


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queue."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release(device: torch.device) -> None:
    """Free memory that is no longer used."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
