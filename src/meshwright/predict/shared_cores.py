"""A pipeline whose ranks share the cores of one machine: a stage that waits leaves its cores to the others."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.pipeline import ChunkTimes
from meshwright.cost.schedule import Hops, evaluate, schedule_named, shared_makespan_s

LONG = 4  # rounds of the pipeline after which every further round adds the same time


@lru_cache(maxsize=4096)
def share_of_even(num_micro_batches: int, pp: int, vp: int, times: ChunkTimes, hop_s: float, fastest: float, *, zero_bubble: bool) -> float:
    """The time of a pipeline whose stages share cores, over that of one whose stages always have the same part of them.

    `times` are numbers, of stages that all work at once; a stage is up to `fastest` times as fast while others wait. After a few rounds
    every further round adds the same time, so a long step is extrapolated from two short ones.
    """
    if pp == 1 or fastest <= 1:
        return 1.0
    rounds, left = divmod(num_micro_batches, pp)
    if rounds <= LONG + 1:
        shared_s, even_s = _both_s(num_micro_batches, pp, vp, times, hop_s, fastest, zero_bubble=zero_bubble)
    else:
        before, after = (
            np.array(_both_s(count * pp + left, pp, vp, times, hop_s, fastest, zero_bubble=zero_bubble)) for count in (LONG - 1, LONG)
        )
        shared_s, even_s = after + (rounds - LONG) * (after - before)
    return float(shared_s / even_s)


def _both_s(
    num_micro_batches: int, pp: int, vp: int, times: ChunkTimes, hop_s: float, fastest: float, *, zero_bubble: bool
) -> tuple[float, float]:
    """Seconds of the pipeline that shares cores, and of the one that does not."""
    order = schedule_named("zero-bubble" if zero_bubble else "interleaved" if vp > 1 else "1f1b", pp, vp, num_micro_batches)
    forward_s = _by_stage(pp, vp, times.forward_s, times.first_forward_s, times.last_forward_s)
    backward_s = _by_stage(pp, vp, times.backward_s, times.first_backward_s, times.last_backward_s)
    weight_s = _by_stage(pp, vp, times.weight_s, times.first_weight_s, times.last_weight_s) if zero_bubble else None
    hops = Hops(hop_s=hop_s)
    shared_s = shared_makespan_s(order, forward_s, backward_s, fastest=fastest, weight_s=weight_s, hops=hops)
    return shared_s, evaluate(order, forward_s, backward_s, weight_s=weight_s, hops=hops).makespan_s


def _by_stage(pp: int, vp: int, middle_s: object, first_s: object, last_s: object) -> NDArray[np.float64]:
    """Seconds of every chunk by stage; the first and the last chunk take so much more."""
    found = np.full((pp, vp), middle_s, dtype=np.float64)
    found[0, 0] += first_s
    found[-1, -1] += last_s
    return np.maximum(found, 0.0)
