"""The noise of a step: the constants of a kind of run, and random draws.

Noise only adds time. So the prediction is the step without noise, and with the same draws more noise never gives a faster step; tests check
both. Draws come from a generator that is passed in; a larger constant scales the same draws. `noise_classes` decides which constants a job
has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, argument
from meshwright.layout import Layout
from meshwright.units import HOUR

Floats = NDArray[np.float64]

# Assumptions: shapes that were chosen, not fitted.
TABLE_SIZE = 1 << 16  # quantiles of a group's jitter: draws have 16 bits, so the tail ends at one in 65,536
DELAY_TAIL = 2.0  # Pareto index of a rank's delay: the largest of n grows with the square root of n
SHORTEST_STALL = 0.1  # share of a step: shorter stalls cannot be distinguished from jitter
MOST_STALLS = 1000  # in one step
DRIFT_STEPS = 15.0  # steps over which the correlation of the drift decays


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The constants of a kind of run, each zero or more."""

    jitter: float  # mean delay of one operation on one rank, of its duration (exponential)
    delay: float  # scale of the delay of a replica's latest rank in a step, of the step (Pareto, index 2)
    drift: float  # scale of the slow drift of the whole machine, of the step
    level_spread: float  # how much runs of one kind differ in these three: the standard deviation of a logarithm
    stalls_per_hour: float  # of one accelerator
    stall_spread: float  # how much runs of one kind differ in this rate: variance divided by the squared mean (gamma)
    stall_share: float  # mean length of a stall beyond a tenth of the step, of the step (exponential)
    first_step_s: float  # mean additional time of the first step (exponential)
    after_evaluation_s: float  # the same of a step after an evaluation
    run_spread: float  # mean of how much slower a whole run is than the best of its kind (exponential)

    def __post_init__(self) -> None:
        for f in fields(Noise):
            value = getattr(self, f.name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"{f.name} is {value}", where="noise", fix="give a number of at least 0")

    def scaled(self, factor: float) -> Noise:
        """The noise with jitter, delay and drift multiplied by a factor."""
        if not (np.isfinite(factor) and factor >= 0):
            raise InputError(f"{argument('jitter')} is {factor}", where=argument("jitter"), fix="give a factor of at least 0")
        return replace(self, jitter=self.jitter * factor, delay=self.delay * factor, drift=self.drift * factor)

    def of_typical_run(self) -> Noise:
        """The noise of the typical run of a kind, with the median level and the mean rate of stalls."""
        return replace(self, level_spread=0.0, stall_spread=0.0)

    def of_one_run(self, rng: np.random.Generator) -> Noise:
        """The noise of one run: its level and its rate of stalls are drawn at random."""
        level = math.exp(self.level_spread * float(rng.standard_normal()))
        rate = float(rng.standard_gamma(1 / self.stall_spread)) * self.stall_spread if self.stall_spread else 1.0
        return replace(self.scaled(level).of_typical_run(), stalls_per_hour=self.stalls_per_hour * rate)


QUIET = Noise(**{f.name: 0.0 for f in fields(Noise)})

MEANING: Mapping[str, tuple[str, str]] = {  # unit, meaning
    "jitter": ("1", "mean delay of an operation on a rank, of its duration"),
    "delay": ("1", "scale of how late a replica's latest rank is in a step, of the step"),
    "drift": ("1", "scale of the machine's slow drift, of the step"),
    "level_spread": ("ln", "spread of the three above between runs of one kind"),
    "stalls_per_hour": ("1/h", "stalls of one accelerator"),
    "stall_spread": ("1", "spread of that rate between runs of one kind: its variance over the square of its mean"),
    "stall_share": ("1", "mean length of a stall beyond a tenth of the step, of the step"),
    "first_step_s": ("s", "mean additional time of the first step"),
    "after_evaluation_s": ("s", "mean additional time of a step after an evaluation"),
    "run_spread": ("1", "mean slowdown of a run against the best of its kind"),
}


@cache
def _jitter_table(num_ranks: int) -> NDArray[np.float32]:
    """Quantiles of the largest of `num_ranks` exponential deviates: 1 - (1 - exp(-x))^n inverted at the middles of equal slices."""
    uniform = (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE
    return (-np.log1p(-(uniform ** (1.0 / num_ranks)))).astype(np.float32)


def group_jitter(num_ranks: int, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """For `size` operations, the largest deviate among the ranks of a tensor- and context-parallel group.

    All ranks wait for the slowest.
    """
    return np.take(_jitter_table(num_ranks), rng.integers(TABLE_SIZE, size=size, dtype=np.uint16))


def latest_rank(layout: Layout, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """For each step and replica, the delay of its latest rank: the largest of as many Pareto deviates as it has ranks, in one draw.

    P(one rank is later than x) = 1 / (n x^2) with n ranks per replica and x of at least 1 / root(n). So the tail of a replica is 1 / x^2
    for any size: in the logs, step times vary with the square root of the number of replicas, not of ranks.
    """
    num_ranks = layout.tp * layout.cp * layout.pp
    one_later = -np.expm1(np.log1p(-rng.random(shape)) / num_ranks)  # 1 - (1 - u)^(1/n): the probability that gives the largest
    return np.asarray((one_later * num_ranks) ** (-1.0 / DELAY_TAIL))


def drift_path(num_steps: int, rng: np.random.Generator) -> Floats:
    """For each step, the absolute value of a deviate whose correlation decays over `DRIFT_STEPS` steps (autoregressive, unit variance)."""
    keep = float(np.exp(-1.0 / DRIFT_STEPS))
    kicks = rng.standard_normal(num_steps) * np.sqrt(1 - keep**2)
    path, here = np.empty(num_steps), float(rng.standard_normal())
    for i, kick in enumerate(kicks.tolist()):
        here = keep * here + kick
        path[i] = here
    return np.abs(path)


def stalls(num_steps: int, num_accelerators: int, step_s: float, noise: Noise, rng: np.random.Generator) -> Floats:
    """Seconds that stalls add to each step: one rank that stops makes all wait. In the logs, stalls are shares of a step, not seconds."""
    expected = noise.stalls_per_hour * num_accelerators * step_s / HOUR
    uniform, lengths = rng.random(num_steps), np.random.Generator(np.random.PCG64(rng.integers(1 << 62)))
    added = np.zeros(num_steps)
    chance = below = float(np.exp(-expected))
    # Counts by inverting the Poisson distribution: the same draws at a higher rate give as many stalls or more.
    for number in range(1, MOST_STALLS + 1):
        more = uniform >= below
        if not more.any():
            break
        added += more * (SHORTEST_STALL + noise.stall_share * lengths.standard_exponential(num_steps))
        chance *= expected / number
        below += chance
    return added * step_s


def mean_stall_s(num_accelerators: int, step_s: float, noise: Noise) -> float:
    """Seconds that stalls add to a step on average."""
    return noise.stalls_per_hour * num_accelerators * step_s / HOUR * (SHORTEST_STALL + noise.stall_share) * step_s


def share_beyond(share: float, layout: Layout, step_s: float, noise: Noise) -> float:
    """The share of steps that are longer than the median by more than `share` of it, over all runs of the kind.

    These are long stalls and very late ranks: the tail of the largest delay of all replicas is dp (delay / share)^2. A stall in a step that
    is already this long counts once, and drift is too small to matter.
    """
    stalled = noise.stalls_per_hour * layout.num_ranks * step_s / HOUR
    if share > SHORTEST_STALL:
        stalled *= math.exp(-(share - SHORTEST_STALL) / noise.stall_share) if noise.stall_share else 0.0
    levels = math.exp(0.5 * (DELAY_TAIL * noise.level_spread) ** 2)  # the mean of the level of a run to this power
    return -math.expm1(-stalled - layout.dp * levels * (noise.delay / share) ** DELAY_TAIL)
