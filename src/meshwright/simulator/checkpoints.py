"""Compares the advised checkpoint interval with the best one in a simulation of interruptions."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.checkpoints import best_interval_s, daly_interval_s

Floats = NDArray[np.float64]


def simulated_best_s(checkpoint_s: float, mean_time_between_s: float, rng: np.random.Generator, num_interruptions: int = 1 << 14) -> float:
    """The interval that was best in a simulation; every interval is tried with the same interruptions.

    The work that is kept varies randomly from one interval to the next, so the maximum of a parabola through all of them is used.
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
    """Relative difference between the advised interval and the simulated best, over random machines.

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
