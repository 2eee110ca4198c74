"""The fit of stalls: how often they come in each class of runs, how long they are, and by how much runs of one class differ.

Counts of runs of one class differ by more than chance: one log has fourteen stalls where its neighbours have one or two. So a run's rate is
gamma distributed about that of its class, and its counts are negative binomial: most runs have fewer stalls than the mean, a few many more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.simulator.noise import SHORTEST_STALL
from meshwright.simulator.noise_classes import COMMON
from meshwright.units import HOUR

Floats = NDArray[np.float64]

SPREADS = (0.0, *np.geomspace(0.1, 30.0, 60).round(3).tolist())  # of a rate, tried: variance over squared mean
PRIOR_STALLS = 1.0  # stalls at the common rate, and of the common length, that count as seen in every class
ROUNDS = 50  # of rates and weights in turn


@dataclass(frozen=True, slots=True)
class Stalls:
    """The stalls of one log."""

    shares: tuple[float, ...]  # length of each, of a step
    exposure_h: float  # accelerator-hours

    @staticmethod
    def seen(shares: Floats, accelerator_s: float) -> Stalls:
        """Stalls of these lengths in so many accelerator-seconds."""
        return Stalls(tuple(shares.tolist()), accelerator_s / HOUR)


@dataclass(frozen=True, slots=True)
class FittedStalls:
    """What was fitted, by class and `common`."""

    per_hour: Mapping[str, float]
    share: Mapping[str, float]  # mean length beyond the shortest
    spread: float  # of a run's rate, the same in all classes


def fitted_stalls(logs: Sequence[Stalls], classes: Sequence[str]) -> FittedStalls:
    """The most likely rates, lengths and spread; in each class the common values count as a stall that was seen."""
    rates = [(_rates(logs, classes, spread), spread) for spread in SPREADS]
    per_hour, spread = max(rates, key=lambda one: _log_likelihood(logs, classes, one[0], one[1]))
    return FittedStalls({name: round(rate, 9) for name, rate in per_hour.items()}, _lengths(logs, classes), spread)


def _rates(logs: Sequence[Stalls], classes: Sequence[str], spread: float) -> dict[str, float]:
    common = _rate(logs, spread, 0.0, 0.0)
    prior_h = PRIOR_STALLS / common if common else 0.0
    names = sorted(set(classes))
    return {
        COMMON: common,
        **{name: _rate(_of(logs, classes, name), spread, PRIOR_STALLS if common else 0.0, prior_h) for name in names},
    }


def _rate(logs: Sequence[Stalls], spread: float, prior: float, prior_h: float) -> float:
    """The rate at which the score of the negative binomial is zero: a log counts the less, the more stalls its hours let expect."""
    counts, hours = np.array([len(log.shares) for log in logs], dtype=float), np.array([log.exposure_h for log in logs])
    if counts.sum() + prior == 0:
        return 0.0
    rate = (counts.sum() + prior) / (hours.sum() + prior_h)
    for _ in range(ROUNDS):
        weights = 1 / (1 + spread * rate * hours)
        rate = (float(weights @ counts) + prior) / (float(weights @ hours) + prior_h)
    return float(rate)


def _log_likelihood(logs: Sequence[Stalls], classes: Sequence[str], rates: Mapping[str, float], spread: float) -> float:
    return sum(_log_chance(len(log.shares), rates[name] * log.exposure_h, spread) for log, name in zip(logs, classes, strict=True))


def _log_chance(count: int, expected: float, spread: float) -> float:
    """Ln of the chance of a count: negative binomial, or Poisson without spread."""
    if expected == 0:
        return 0.0 if count == 0 else -math.inf
    if spread == 0:
        return count * math.log(expected) - expected - math.lgamma(count + 1)
    shape = 1 / spread
    chances = math.lgamma(count + shape) - math.lgamma(shape) - math.lgamma(count + 1)
    return chances + shape * math.log(shape / (shape + expected)) + count * math.log(expected / (shape + expected))


def _lengths(logs: Sequence[Stalls], classes: Sequence[str]) -> dict[str, float]:
    """By class, the mean length beyond the shortest: exponential, so the same beyond any length."""
    common = _beyond(logs)
    mean = float(np.mean(common)) if common else 0.0
    lengths = {COMMON: mean}
    for name in sorted(set(classes)):
        own = _beyond(_of(logs, classes, name))
        lengths[name] = (sum(own) + PRIOR_STALLS * mean) / (len(own) + PRIOR_STALLS)
    return {name: round(length, 4) for name, length in lengths.items()}


def _beyond(logs: Sequence[Stalls]) -> list[float]:
    return [share - SHORTEST_STALL for log in logs for share in log.shares]


def _of(logs: Sequence[Stalls], classes: Sequence[str], name: str) -> list[Stalls]:
    return [log for log, kind in zip(logs, classes, strict=True) if kind == name]
