"""The joint fit of the eight noise constants on step-time logs, and what it says of logs it has not seen.

Jitter, delay and drift are fitted together on every log's robust standard deviation and median, through a fast stand-in for the walk
(`_Stand`): the latest replica is drawn as the walk draws it, and jitter is linear in its size. As in the predictor's fit every one of
the three has a value expected beforehand, which counts as an observation: what logs do not decide stays there. The other five follow
from counts and means. What is reported of a log comes from the full simulator with constants fitted without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.table import read_table
from meshwright.record.step_times import MAD_TO_STD, StepTimes
from meshwright.simulator import noise as draws
from meshwright.simulator.logs import StepLog
from meshwright.simulator.noise import MEANING, QUIET, Noise
from meshwright.simulator.step import Setting, simulate, undisturbed, walk
from meshwright.units import HOUR

Floats = NDArray[np.float64]

# How the fit weighs what it sees.
ASKED_FACTOR = 1.5  # between simulated and logged standard deviations
ASKED_EDGE = 0.045  # in ln: how soft the edge of that factor is
SPREAD_SCALE = 0.3  # ln of a standard deviation: within the factor, an error of a third still counts
MEDIAN_SCALE = 0.02  # of a step
MEDIAN_WEIGHT = 0.25  # of a median against a standard deviation: medians are the predictor's to get right
STALL_SHARE = 0.1  # of the median step: what is longer counts as a stall
STAND_RUNS = 8  # a drift is slow: one run of a few hundred steps says little of its size
STAND_SEED = 5
PROBE_JITTER = 1e-3
PROBE_REPLICAS = 4
EXPECTED = {"jitter": 5e-4, "delay": 2.5e-4, "drift": 5e-3}  # assumed beforehand
EXPECTED_SPREAD = 1.0  # of a logarithm
RUNS_PER_ROW = 3  # logs behind a row's spread; the range of three exponentials is 1.5 means
BENCHMARKS = ("gpt3", "llama31_405b")


@dataclass(frozen=True, slots=True, eq=False)
class _Stand:
    """A log's step without its walk: common draws, which constants scale."""

    step_s: float
    jitter_s: float  # what the step grows by with jitter of 1
    latest: Floats  # runs x steps: the largest deviate of all replicas
    drift: Floats  # runs x steps, with the layout's factor in it
    log_spread: float  # of the log: ln of its robust standard deviation
    median_s: float

    def seen(self, values: Noise) -> tuple[float, float]:
        """Median seconds of a steady step, and ln of the robust standard deviation in per cent: medians of the runs'."""
        late_s = values.delay * self.step_s * self.latest
        steps_s = self.step_s * (1 + values.drift * self.drift) + values.jitter * self.jitter_s + late_s
        medians_s = np.median(steps_s, axis=1, keepdims=True)
        spreads = 100 * MAD_TO_STD * np.median(np.abs(steps_s - medians_s), axis=1) / medians_s[:, 0]
        return float(np.median(medians_s)), math.log(max(float(np.median(spreads)), 1e-6))


def _stand(log: StepLog) -> _Stand:
    planned, rng = log.planned, np.random.default_rng(STAND_SEED)
    num_steps = len(log.times.steady_s)
    shape = (STAND_RUNS * num_steps, planned.plan.layout.dp)
    probe = walk(planned, 1, Setting(noise=replace(QUIET, jitter=PROBE_JITTER)), rng, num_replicas=PROBE_REPLICAS)
    quiet_s = undisturbed(planned).pipeline_s
    return _Stand(
        step_s=planned.step_s,
        jitter_s=max(float(np.mean(probe.pipeline_s - probe.weights_s)) - quiet_s, 0.0) / PROBE_JITTER,
        latest=draws.latest_rank(planned.plan.layout, shape, rng).max(axis=1).reshape(STAND_RUNS, num_steps),
        drift=draws.drift_scale(planned.plan.layout, planned.step_s, 1.0)
        * np.stack([draws.drift_path(num_steps, rng) for _ in range(STAND_RUNS)]),
        log_spread=math.log(log.times.robust_std_pct),
        median_s=log.times.median_s,
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """One log against the simulator with constants that were fitted without it."""

    log: StepLog
    noise: Noise
    simulated: tuple[StepTimes, ...]  # a run a seed, each with the log's number of steps and evaluations

    @property
    def median_s(self) -> float:
        """Of the simulated runs' medians, the median."""
        return float(np.median([times.median_s for times in self.simulated]))

    @property
    def robust_std_pct(self) -> float:
        """Of the simulated runs' robust standard deviations, the median."""
        return float(np.median([times.robust_std_pct for times in self.simulated]))

    @property
    def median_error(self) -> float:
        """Of the median step, relative."""
        return self.median_s / self.log.times.median_s - 1

    @property
    def spread_ratio(self) -> float:
        """Simulated robust standard deviation over the logged one."""
        return self.robust_std_pct / self.log.times.robust_std_pct

    @property
    def is_near(self) -> bool:
        """Whether the standard deviations are within the factor that is asked for."""
        return 1 / ASKED_FACTOR <= self.spread_ratio <= ASKED_FACTOR


class NoiseFit:
    """A fit of the constants, all logs or all but one; expensive work is done once."""

    def __init__(self, logs: Sequence[StepLog], report: Callable[[str, int, int], None] | None = None) -> None:
        self.logs = tuple(logs)
        self._stands = []
        for number, log in enumerate(self.logs):
            self._stands.append(_stand(log))
            if report:
                report("reading logs", number + 1, len(self.logs))
        self._spread = _run_spread()
        self._start: tuple[float, float, float] | None = None

    def fitted(self, left_out: int = -1) -> Noise:
        """The constants, fitted on all logs but number `left_out`."""
        logs = [log for i, log in enumerate(self.logs) if i != left_out]
        stands = [stand for i, stand in enumerate(self._stands) if i != left_out]
        jitter, delay, drift = self._shaken(stands)
        rate, length_s = _stalls(logs)
        return Noise(
            jitter=jitter,
            delay=delay,
            drift=drift,
            stalls_per_hour=rate,
            stall_s=length_s,
            first_step_s=_exponential_mean([_first_excess_s(log) for log in logs]),
            after_evaluation_s=_exponential_mean([excess for log in logs if log.timer_is_wall for excess in _after_excess_s(log)]),
            run_spread=self._spread,
        )

    def _shaken(self, stands: Sequence[_Stand]) -> tuple[float, float, float]:
        """Jitter, delay and drift: the best of several starts, each in logarithms so that none turns negative."""
        from scipy.optimize import minimize

        starts = [self._start] if self._start else [(-7.0, -8.5, -5.0), (-9.0, -8.0, -4.5), (-8.0, -9.0, -5.5)]
        found = [
            minimize(_loss, start, args=(stands,), method="Nelder-Mead", options={"maxiter": 300, "xatol": 1e-3, "fatol": 1e-5})
            for start in starts
        ]
        best = min(found, key=lambda one: float(one.fun))
        if self._start is None:
            self._start = (float(best.x[0]), float(best.x[1]), float(best.x[2]))
        jitter, delay, drift = (round(math.exp(float(x)), 9) for x in best.x)
        return jitter, delay, drift

    def checked(self, number: int, seeds: Sequence[int] = (1, 2, 3)) -> Checked:
        """Log `number` simulated with constants fitted without it."""
        log, values = self.logs[number], self.fitted(left_out=number)
        return Checked(log, values, tuple(simulated_as(log, values, seed) for seed in seeds))


def simulated_as(log: StepLog, values: Noise, seed: int) -> StepTimes:
    """A simulated run of as many steps and evaluations as the log has."""
    steps = simulate(log.planned, len(log.times.seconds), seed, Setting(noise=values), log.first_steps)
    return StepTimes(steps.step_s, steps.is_first, "simulated")


def _loss(logarithms: Sequence[float], stands: Sequence[_Stand]) -> float:
    """How badly constants fit all logs, and how far they are from what was expected."""
    jitter, delay, drift = (math.exp(min(float(x), 0.0)) for x in logarithms)
    values = replace(QUIET, jitter=jitter, delay=delay, drift=drift)
    total = sum(0.5 * ((x - math.log(EXPECTED[name])) / EXPECTED_SPREAD) ** 2 for name, x in zip(EXPECTED, logarithms, strict=True))
    for stand in stands:
        median_s, spread = stand.seen(values)
        median = math.log(median_s / stand.median_s)
        total += _missed(spread - stand.log_spread) + MEDIAN_WEIGHT * _bounded(median / MEDIAN_SCALE)
    return total


def _bounded(error: float) -> float:
    """From 0 to 1: beyond some scales an error counts no more, since a few logs are of troubled machines."""
    return 1 - math.exp(-0.5 * error * error)


def _missed(log_ratio: float) -> float:
    """From 0 to 1, rising where the ratio of two standard deviations leaves the factor that is asked for."""
    beyond = (abs(log_ratio) - math.log(ASKED_FACTOR)) / ASKED_EDGE
    return 0.8 / (1 + math.exp(-min(beyond, 50.0))) + 0.2 * _bounded(log_ratio / SPREAD_SCALE)


def _stalls(logs: Sequence[StepLog]) -> tuple[float, float]:
    """Stalls per hour of one accelerator, and their mean length beyond the threshold (exponential: the same as in all)."""
    exposure_h, lengths_s = 0.0, []
    for log in logs:
        steady_s, median_s = log.times.steady_s, log.times.median_s
        exposure_h += log.run.num_accelerators * float(np.sum(steady_s)) / HOUR
        lengths_s += (steady_s[steady_s > (1 + STALL_SHARE) * median_s] - (1 + STALL_SHARE) * median_s).tolist()
    return round(len(lengths_s) / exposure_h, 9), round(float(np.mean(lengths_s)), 4) if lengths_s else 0.0


def _first_excess_s(log: StepLog) -> float:
    return max(float(log.times.seconds[0]) - log.times.median_s, 0.0)


def _after_excess_s(log: StepLog) -> list[float]:
    after_s = log.times.seconds[log.first_steps[1:]] - log.times.median_s
    return [max(float(np.median(after_s)), 0.0)] if len(after_s) else []


def _exponential_mean(excesses_s: Sequence[float]) -> float:
    """The mean of an exponential distribution with the same median: a few huge values do not decide. None seen: 0."""
    return round(float(np.median(excesses_s)) / math.log(2), 4) if excesses_s else 0.0


def _run_spread() -> float:
    """Mean slowness of a run against the best of its row, from the range of medians that rows of measured runs state."""
    rows = read_table(MEASURED_CSV).rows
    chosen = [row for row in rows if row.text("benchmark") in BENCHMARKS and row.text("vendor") == "NVIDIA"]
    ranges = [float(row.text("run_spread_pct")) for row in chosen if row.text("run_spread_pct")]
    return round(float(np.mean(ranges)) / 100 / sum(1 / k for k in range(1, RUNS_PER_ROW)), 6)


def json_text(values: Noise, fitted_on: str, date: str) -> str:
    """The constants as the package carries them."""
    entries: dict[str, Any] = {
        name: {"value": getattr(values, name), "unit": unit, "meaning": meaning} for name, (unit, meaning) in MEANING.items()
    }
    return json.dumps({"fitted_on": fitted_on, "date": date, "constants": entries}, indent=1) + "\n"
