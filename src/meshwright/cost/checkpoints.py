"""The checkpoint interval that loses the least time to saving and to repeated work, and the goodput."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

BISECTIONS = 60


def best_interval_s(checkpoint_s: Any, mean_time_between_s: Any) -> Any:
    """Seconds of work between checkpoints that give the most work per hour, with interruptions at random.

    Between interruptions a run finishes on average 1 / (exp((t + c) / M) - 1) intervals of t seconds of work and c of saving; the best t
    solves (1 - t / M) exp((t + c) / M) = 1. The time of a restart does not matter. If saving costs nothing, the result is 0: as often as
    possible.
    """
    share = np.asarray(checkpoint_s, dtype=np.float64) / mean_time_between_s
    low, high = np.zeros_like(share), np.ones_like(share)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_short = np.log1p(-middle) + middle + share > 0
        low, high = np.where(too_short, middle, low), np.where(too_short, high, middle)
    return (low + high) / 2 * mean_time_between_s


def young_interval_s(checkpoint_s: Any, mean_time_between_s: Any) -> Any:
    """Young's first order (CACM 1974): root(2 c M)."""
    return np.sqrt(2 * np.asarray(checkpoint_s) * mean_time_between_s)


def daly_interval_s(checkpoint_s: Any, mean_time_between_s: Any) -> Any:
    """Daly's higher order (FGCS 2006): Young's with two corrections, less the checkpoint; M where saving takes twice M or more."""
    half = np.asarray(checkpoint_s) / (2 * np.asarray(mean_time_between_s))
    corrected = young_interval_s(checkpoint_s, mean_time_between_s) * (1 + np.sqrt(half) / 3 + half / 9) - checkpoint_s
    return np.where(half < 1, corrected, mean_time_between_s)


def goodput(interval_s: Any, checkpoint_s: Any, mean_time_between_s: Any, down_s: Any) -> Any:
    """Share of the wall clock that is work which is kept, in the long run, with `down_s` after every interruption.

    Interruptions come at random by the wall clock, also during a restart; the restart then begins again.
    """
    finished = 1 / np.expm1((np.asarray(interval_s) + checkpoint_s) / mean_time_between_s)
    return finished * interval_s * np.exp(-np.asarray(down_s) / mean_time_between_s) / mean_time_between_s


def manned_share(nodes_out: float, num_spares: int) -> float:
    """Share of the time in which no more nodes are in repair than there are spare nodes.

    Nodes are lost at random by the wall clock, at any state of the run, so the number in repair is Poisson with a mean of `nodes_out`.
    """
    if nodes_out <= 0:
        return 1.0
    logs = -nodes_out + np.arange(num_spares + 1) * math.log(nodes_out)
    logs[1:] -= np.cumsum(np.log(np.arange(1, num_spares + 1)))
    return min(float(np.sum(np.exp(logs))), 1.0)
