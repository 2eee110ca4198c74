"""How often to save: the interval that loses the least to saving and to work done again, and Young's and Daly's beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
BISECTIONS = 60


def best_interval_s(checkpoint_s: Any, mean_time_between_s: Any) -> Any:
    """Seconds of work between checkpoints that give the most work an hour, with interruptions at random.

    Between interruptions a run finishes on average 1 / (exp((t + c) / M) - 1) intervals of t seconds of work and c of saving; the best t
    solves (1 - t / M) exp((t + c) / M) = 1. How long a restart takes does not matter. Free checkpoints: as often as possible, 0.
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
    """Share of the wall clock that is work which stays, in the long run, with `down_s` after every interruption.

    Interruptions come at random by the wall clock, also while a run restarts; then the restart begins anew.
    """
    finished = 1 / np.expm1((np.asarray(interval_s) + checkpoint_s) / mean_time_between_s)
    return finished * interval_s * np.exp(-np.asarray(down_s) / mean_time_between_s) / mean_time_between_s


def simulated_best_s(checkpoint_s: float, mean_time_between_s: float, rng: np.random.Generator, num_interruptions: int = 1 << 14) -> float:
    """The interval that did best in a simulation of so many interruptions: the same ones for every interval that is tried.

    Work kept is noisy from one interval to the next, so the top of a parabola through all of them counts.
    """
    up_s = mean_time_between_s * rng.standard_exponential(num_interruptions)
    guess_s = daly_interval_s(checkpoint_s, mean_time_between_s)
    for width in (2.0, 1.5):
        tried = float(guess_s) * np.geomspace(1 / width, width, 25)
        kept = np.array([np.sum(np.floor(up_s / (t + checkpoint_s))) * t for t in tried.tolist()]) / np.sum(up_s)
        curve = np.polyfit(np.log(tried / guess_s), kept, 3)
        guess_s = guess_s * math.exp(_top(curve, math.log(width)))
    return float(guess_s)


def _top(curve: Floats, limit: float) -> float:
    """Where a polynomial is largest within the limits."""
    at = np.linspace(-limit, limit, 2001)
    return float(at[np.argmax(np.polyval(curve, at))])


def advice_errors(num_cases: int, seed: int) -> Floats:
    """How far the advised interval is from the simulated best, relative, over random machines.

    Checkpoints of 1 s to 10 min, interruptions every 10 min to 10 days, saving at most a tenth of the time between them.
    """
    rng = np.random.default_rng(seed)
    errors: list[float] = []
    while len(errors) < num_cases:
        checkpoint_s, between_s = math.exp(rng.uniform(0, math.log(600))), math.exp(rng.uniform(math.log(600), math.log(864000)))
        if checkpoint_s > 0.1 * between_s:
            continue
        best_s = simulated_best_s(checkpoint_s, between_s, rng)
        errors.append(float(best_interval_s(checkpoint_s, between_s)) / best_s - 1)
    return np.array(errors)
