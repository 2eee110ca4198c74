"""How well a run's step time is known: its autocorrelation, the interval of its median, the smallest difference that can be detected.

Steps are not independent: a slow network or a warm rack stays so for a while. Intervals therefore come from a bootstrap that draws whole
blocks of neighbouring steps (Kuensch 1989, circular as in Politis and Romano 1992), twice as long as the correlation of the steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]

NUM_DRAWS = 1000
MAX_BOOTSTRAPPED = 20_000  # steps; longer series are taken as medians of neighbours
MAX_CELLS = 1 << 20  # of a table of resampled steps
MIN_STEPS = 8  # steady ones; fewer say nothing about noise
TWO_SIDED_95 = 1.96
METHOD = "95 % interval of the median step time by a bootstrap over blocks of neighbouring steps, so that their correlation counts"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Noise:
    """How well the median of a series of step times is known."""

    correlation_steps: float  # number of neighbouring steps that are similar; 1: steps are independent
    effective_steps: float  # independent steps that would give as much information
    low_s: float  # 95 % interval of the median
    high_s: float
    floor_pct: float  # smallest difference that jitter within two such runs does not explain, at 95 %; different runs vary more
    draws_s: Column  # medians of the resampled series


def noise_of(steady_s: Column, seed: int = 0) -> Noise | None:
    """The noise of steady step times; None if there are too few. Runs that are compared need different seeds."""
    if len(steady_s) < MIN_STEPS or not np.median(steady_s) > 0:
        return None
    tau = correlation_steps(steady_s)
    draws = median_draws(steady_s, tau, np.random.default_rng(seed))
    low, high = np.percentile(draws, [2.5, 97.5])
    median = float(np.median(steady_s))
    return Noise(
        correlation_steps=tau,
        effective_steps=len(steady_s) / tau,
        low_s=float(low),
        high_s=float(high),
        floor_pct=100 * TWO_SIDED_95 * math.sqrt(2) * float(np.std(draws)) / median,
        draws_s=draws,
    )


def correlation_steps(values: Column) -> float:
    """The integrated autocorrelation time in steps, at least 1 (Geyer 1992, initial positive sequence).

    Stalls are first cut to the range of the other steps: one step a thousand times as long would hide the correlation of the others.
    """
    low, high = np.percentile(values, [1, 99])
    centred = np.clip(values, low, high)
    centred = centred - centred.mean()
    count = len(centred)
    spectrum = np.fft.rfft(centred, 2 * count)
    covariance = np.fft.irfft(spectrum * np.conj(spectrum))[: count // 2]
    if not covariance[0] > 0:
        return 1.0
    correlation = covariance / covariance[0]
    pairs = correlation[: len(correlation) // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if len(negative) else pairs
    return float(min(max(2 * kept.sum() - 1, 1.0), count / 4))


def median_draws(values: Column, tau: float, rng: np.random.Generator) -> Column:
    """Medians of the series resampled in blocks."""
    fold = math.ceil(len(values) / MAX_BOOTSTRAPPED)
    if fold > 1:
        values, tau = np.median(values[: len(values) // fold * fold].reshape(-1, fold), axis=1), max(tau / fold, 1.0)
    count = len(values)
    length = min(max(math.ceil(2 * tau), 1), max(count // 3, 1))
    num_blocks = math.ceil(count / length)
    twice = np.concatenate((values, values[:length]))
    rows = max(MAX_CELLS // count, 1)  # resampled at a time
    draws = []
    for done in range(0, NUM_DRAWS, rows):
        starts = rng.integers(0, count, (min(rows, NUM_DRAWS - done), num_blocks, 1))
        drawn = twice[(starts + np.arange(length)).reshape(len(starts), -1)[:, :count]]
        draws.append(np.median(drawn, axis=1))
    return np.concatenate(draws)
