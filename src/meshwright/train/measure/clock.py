"""Seconds of work on a device: from events on the stream of a GPU, and on processors from the core time that the work uses.

Processes that share cores are timed by the core time they use, not by the wall clock: other programs on the machine then do not count.
When all cores are busy, wall time follows from core time (`share_cores`).
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
MOST_QUEUED = 10_000  # pieces of work that are timed as one


def interleaved_s(works: Sequence[Work], device: torch.device, budget_s: float) -> list[float]:
    """Seconds of each piece of work, which take turns for about `budget_s`: the median on a GPU, the mean on a processor.

    They take turns because the clock of a GPU at its power cap depends on the mix of work: a product that runs alone heats the chip
    differently than among other kernels.
    """
    for work in works:  # the first calls choose algorithms and allocate memory
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


_crowd: float | None = None  # processes per core, if they take turns; None: wall time is used


def share_cores(num_processes: int, num_cores: int) -> None:
    """Set how many processes share the cores. If there are fewer processes than cores, wall time is used."""
    global _crowd
    _crowd = num_processes / num_cores if num_processes >= num_cores else None


def now_s() -> float:
    """The clock for processors: wall seconds, as they would pass if only these processes ran."""
    return time.perf_counter() if _crowd is None else time.process_time() * _crowd


def seconds_of(work: Work, device: torch.device, budget_s: float) -> float:
    """Seconds of one piece of work, repeated for about `budget_s`."""
    return interleaved_s([work], device, budget_s)[0]


def mean_s(work: Work, device: torch.device, budget_s: float) -> float:
    """Seconds of one piece of work, repeated for about `budget_s`, with the time in which other processes had the device.

    A GPU runs programs in turns. The median of single pieces would not show that another program has every second turn.
    """
    num_rounds = min(max(int(budget_s / max(seconds_of(work, device, 0.0), 1e-7)), LEAST_ROUNDS), MOST_QUEUED)
    synchronize(device)
    started_s = time.perf_counter()
    for _ in range(num_rounds):
        work()
    synchronize(device)
    return (time.perf_counter() - started_s) / num_rounds


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
