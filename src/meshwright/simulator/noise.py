"""What disturbs a step: eight fitted constants, and draws from them.

A disturbance only ever adds time. So the prediction is the undisturbed step, and with the same draws more noise never gives a faster
step: both are tested. Draws come from a generator that is passed in; scaling a constant scales the same draws.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, argument
from meshwright.files import read_text
from meshwright.layout import Layout
from meshwright.units import HOUR

Floats = NDArray[np.float64]

CONSTANTS_FILE = Path(__file__).parent / "noise.json"

# Assumptions: shapes that were chosen, not fitted.
TABLE_SIZE = 1 << 16  # quantiles of a group's jitter: draws are 16 bits, so its far tail ends at one in 65,536
DELAY_TAIL = 2.0  # Pareto index of a rank's delay: the largest of n grows with the root of n
MOST_STALLS = 1000  # in one step
DRIFT_STEPS = 15.0  # steps after which the machine's drift is forgotten
DRIFT_REFERENCE_S = 10.0  # step at which `drift` is what it says; longer steps average it out


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The constants, each zero or more."""

    jitter: float  # mean delay of one operation on one rank, of its duration (exponential)
    delay: float  # scale of how late a replica's latest rank is in a step, of the step (Pareto, index 2)
    drift: float  # scale of the slow drift of the whole machine at tp=4 and steps of 10 s, where it drifts
    stalls_per_hour: float  # of one accelerator
    stall_s: float  # mean length (exponential)
    first_step_s: float  # mean additional time of the first step (exponential)
    after_evaluation_s: float  # the same of a step after an evaluation
    run_spread: float  # mean of what a whole run is slower than the best of its kind (exponential)

    def __post_init__(self) -> None:
        for f in fields(Noise):
            value = getattr(self, f.name)
            if not (np.isfinite(value) and value >= 0):
                raise InputError(f"{f.name} is {value}", where="noise", fix="give a number of at least 0")

    @property
    def words(self) -> str:
        """The noise against that of logs, in words."""
        usual = fitted_noise()
        if self in (QUIET, usual):
            return "no noise" if self == QUIET else "noise as logs show it"
        factor = self.jitter / usual.jitter if usual.jitter else 1.0
        wanted = usual.scaled(factor)
        is_scaled = all(math.isclose(getattr(self, each.name), getattr(wanted, each.name), rel_tol=1e-9) for each in fields(Noise))
        return f"jitter {factor:.6g} times that of logs" if is_scaled else "other noise than logs show"

    def scaled(self, factor: float) -> Noise:
        """The noise with all that jitters (operations, replicas, drift) so many times as strong."""
        if not (np.isfinite(factor) and factor >= 0):
            raise InputError(f"{argument('jitter')} is {factor}", where=argument("jitter"), fix="give a factor of at least 0")
        return replace(self, jitter=self.jitter * factor, delay=self.delay * factor, drift=self.drift * factor)


QUIET = Noise(jitter=0.0, delay=0.0, drift=0.0, stalls_per_hour=0.0, stall_s=0.0, first_step_s=0.0, after_evaluation_s=0.0, run_spread=0.0)

MEANING: Mapping[str, tuple[str, str]] = {  # unit, meaning
    "jitter": ("1", "mean delay of an operation on a rank, of its duration"),
    "delay": ("1", "scale of how late a replica's latest rank is in a step, of the step"),
    "drift": ("1", "scale of the machine's slow drift at tp=4 and 10 s per step, where tensor traffic hides behind products and cp > 1"),
    "stalls_per_hour": ("1/h", "stalls of one accelerator"),
    "stall_s": ("s", "mean length of a stall"),
    "first_step_s": ("s", "mean additional time of the first step"),
    "after_evaluation_s": ("s", "mean additional time of a step after an evaluation"),
    "run_spread": ("1", "mean slowdown of a run against the best of its kind"),
}


@cache
def fitted_noise(path: Path = CONSTANTS_FILE) -> Noise:
    """The constants that the package carries, written by `meshwright noise --fit`."""
    return noise_of(json.loads(read_text(path)))


def noise_of(data: Mapping[str, Any]) -> Noise:
    """The constants from their JSON form."""
    return Noise(**{f.name: float(data["constants"][f.name]["value"]) for f in fields(Noise)})


def drift_scale(layout: Layout, step_s: float, drift: float) -> float:
    """Scale of the machine's slow drift, of the step.

    Empirical: the logs drift where tensor-parallel traffic hides behind the products of layers that are also cut by context
    parallelism, less so at higher tensor degrees; and a longer step averages over more of it.
    """
    if not (layout.overlap_tp and layout.cp > 1):
        return 0.0
    return drift * 4.0 / layout.tp * math.sqrt(DRIFT_REFERENCE_S / step_s)


@cache
def _jitter_table(num_ranks: int) -> NDArray[np.float32]:
    """Quantiles of the largest of `num_ranks` exponential deviates: 1 - (1 - exp(-x))^n inverted at the middles of equal slices."""
    uniform = (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE
    return (-np.log1p(-(uniform ** (1.0 / num_ranks)))).astype(np.float32)


def group_jitter(num_ranks: int, size: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """For `size` operations, the largest deviate among the ranks of a tensor- and context-parallel group: all wait for the slowest."""
    return np.take(_jitter_table(num_ranks), rng.integers(TABLE_SIZE, size=size, dtype=np.uint16))


def latest_rank(layout: Layout, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """For each step and replica, how late its latest rank is: the largest of as many Pareto deviates, drawn at once.

    P(one rank is later than x) = 1 / (n x^2) with n ranks a replica, x of at least 1 / root(n). So the replica's tail is 1 / x^2 whatever
    its size: in the logs steps spread with the root of the number of replicas, not of ranks.
    """
    num_ranks = layout.tp * layout.cp * layout.pp
    one_later = -np.expm1(np.log1p(-rng.random(shape)) / num_ranks)  # 1 - (1 - u)^(1/n): the chance that decides for the largest
    return np.asarray((one_later * num_ranks) ** (-1.0 / DELAY_TAIL))


def drift_path(num_steps: int, rng: np.random.Generator) -> Floats:
    """For each step, the size of a deviate that forgets itself over `DRIFT_STEPS` steps (autoregressive, unit variance, folded)."""
    keep = float(np.exp(-1.0 / DRIFT_STEPS))
    kicks = rng.standard_normal(num_steps) * np.sqrt(1 - keep**2)
    path, here = np.empty(num_steps), float(rng.standard_normal())
    for i, kick in enumerate(kicks.tolist()):
        here = keep * here + kick
        path[i] = here
    return np.abs(path)


def stalls(num_steps: int, num_accelerators: int, step_s: float, noise: Noise, rng: np.random.Generator) -> Floats:
    """Seconds that stalls add to each step: any rank that stops stops everyone."""
    expected = noise.stalls_per_hour * num_accelerators * step_s / HOUR
    uniform, lengths = rng.random(num_steps), np.random.Generator(np.random.PCG64(rng.integers(1 << 62)))
    added = np.zeros(num_steps)
    chance = below = float(np.exp(-expected))
    # Counts by inverting the Poisson distribution: the same draws at a higher rate give as many stalls or more.
    for number in range(1, MOST_STALLS + 1):
        more = uniform >= below
        if not more.any():
            break
        added += more * lengths.standard_exponential(num_steps)
        chance *= expected / number
        below += chance
    return added * noise.stall_s
