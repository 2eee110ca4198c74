"""Fits the noise on step-time logs, class by class, and checks it on logs and machines that were left out.

Delay and drift of a class are fitted on two numbers of each log: the robust standard deviation of its steps, and that of the changes from
one step to the next, in which a slow drift hardly shows. The values that all classes have in common count as one more observation for each
class, so a class with few logs stays near them. The same is done for rates, lengths and first steps. The reported results for a log come
from the full simulator, with constants fitted without this log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.table import read_table
from meshwright.record.step_times import MAD_TO_STD, StepTimes
from meshwright.simulator import noise as draws
from meshwright.simulator.logs import StepLog
from meshwright.simulator.noise import SHORTEST_STALL, Noise, share_beyond
from meshwright.simulator.noise_classes import COMMON, UNPIPELINED, FittedNoise, class_of_job
from meshwright.simulator.row_spreads import drift_without_pipeline
from meshwright.simulator.stall_fit import Stalls, fitted_stalls
from meshwright.simulator.step import simulate_typical

Floats = NDArray[np.float64]

# Weights of the fit.
SPREAD_SCALE = 0.3  # ln of a standard deviation: an error of a third
CHANGE_WEIGHT = 0.5  # weight of the changes from step to step, relative to the steps themselves
CLASS_SPREAD = 1.0  # ln by which a class was expected to differ from the common values
EXPECTED = (math.log(2.5e-4), math.log(2e-3))  # ln of delay and drift, assumed beforehand
ROUNDS = 6  # alternations between class values and common values: they converge earlier
JITTER = 5e-4  # assumed: step times do not determine it
UNIT_RUNS = 40  # simulated runs for each log: one run of a few hundred steps says little about a slow drift
UNIT_SEED = 5
DELAYS = np.linspace(math.log(2e-5), math.log(4e-3), 107)  # the grid of the fit
DRIFTS = np.linspace(math.log(1e-4), math.log(5e-2), 125)
RATIOS = np.linspace(DELAYS[0] - DRIFTS[-1], DELAYS[-1] - DRIFTS[0], 47)  # ln of delay over drift
RUNS_PER_ROW = 3  # logs behind a row's spread; the range of three exponentials is 1.5 means
BENCHMARKS = ("gpt3", "llama31_405b")

TIMERS = {False: "timer of the step", True: "wall clock"}

# Targets for a simulated log.
ASKED_FACTOR = 1.5  # between simulated and logged standard deviations
LONG_SHARE = 0.2  # share of a median: steps that are longer by more than this count as long
LONG_FACTOR = 2.0  # between simulated and logged numbers of long steps, and between first steps
RARE = math.exp(-2.0)  # a count is accepted if chance gives one as extreme this often: none is accepted where two are expected
NORMAL_90 = 1.2815515655446004  # 80 % of a normal distribution are within so many standard deviations


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The numbers of a log that are used in the fit, and what delays and drifts would give for it."""

    kind: str
    spread: float  # ln of the robust standard deviation of steps, per cent
    change: float  # the same of changes between steps
    shown: tuple[Floats, Floats]  # by ratio of delay to drift, ln of the spread and of the change that a drift of 1 would show

    def predicted(self, delay: Floats | float, drift: Floats | float, of_change: int = 0) -> Floats:
        """Logarithm of the spread, or of the change, for these logarithms of delay and drift.

        Both scale the draws, so only their ratio matters.
        """
        return np.asarray(drift + np.interp(delay - drift, RATIOS, self.shown[of_change]))

    def losses(self) -> Floats:
        """How badly each point of the grid fits. A few logs are of disturbed machines, so large errors count by their logarithm."""
        delay, drift = DELAYS[:, None], DRIFTS[None, :]
        spread, change = self.predicted(delay, drift) - self.spread, self.predicted(delay, drift, 1) - self.change
        return np.asarray(_loss(spread) + CHANGE_WEIGHT * _loss(change))


def _loss(error: Floats) -> Floats:
    return np.log1p((error / SPREAD_SCALE) ** 2 / 2)


def _seen(log: StepLog) -> Seen:
    relative = log.times.steady_s / log.times.median_s
    return Seen(
        kind=class_of_job(log.planned.forecast.job, log.run.layout),
        spread=math.log(_spread_pct(relative[None, :])),
        change=math.log(_spread_pct(_changes(relative[None, :]))),
        shown=_shown(log),
    )


def _shown(log: StepLog) -> tuple[Floats, Floats]:
    """What runs with the layout and length of the log would show, drawn as the simulator draws them, for each ratio of delay to drift."""
    rng, layout, num_steps = np.random.default_rng(UNIT_SEED), log.run.layout, len(log.times.steady_s)
    late = draws.latest_rank(layout, (UNIT_RUNS * num_steps, layout.dp), rng).max(axis=1).reshape(UNIT_RUNS, num_steps)
    slow = np.stack([draws.drift_path(num_steps, rng) for _ in range(UNIT_RUNS)])
    runs = [slow + math.exp(ratio) * late for ratio in RATIOS]
    return np.log([_spread_pct(run) for run in runs]), np.log([_spread_pct(_changes(run)) for run in runs])


def _changes(runs: Floats) -> Floats:
    return np.diff(runs, axis=1) / math.sqrt(2)


def _spread_pct(runs: Floats) -> float:
    """The median over runs of their robust standard deviations, per cent."""
    away = np.abs(runs - np.median(runs, axis=1, keepdims=True))
    return float(100 * MAD_TO_STD * np.median(np.median(away, axis=1)))


@dataclass(frozen=True, slots=True)
class Checked:
    """One log compared with the simulator, with constants that were fitted without it, or without its machine."""

    log: StepLog
    noise: Noise
    simulated: tuple[StepTimes, ...]  # one typical run per seed, with the steps and evaluations of the log

    @property
    def median_s(self) -> float:
        """The median of the medians of the simulated runs."""
        return float(np.median([times.median_s for times in self.simulated]))

    @property
    def robust_std_pct(self) -> float:
        """The robust standard deviation of a typical run: the median over the simulated runs."""
        return float(np.median([times.robust_std_pct for times in self.simulated]))

    @property
    def robust_std_80_pct(self) -> tuple[float, float]:
        """The range of the standard deviations of 80 of 100 runs, given the spread of a run's level."""
        factor = math.exp(NORMAL_90 * self.noise.level_spread)
        return self.robust_std_pct / factor, self.robust_std_pct * factor

    @property
    def first_step_s(self) -> float:
        """The median of the simulated first steps."""
        return float(np.median([times.seconds[0] for times in self.simulated]))

    @property
    def median_error(self) -> float:
        """Relative error of the median step."""
        return self.median_s / self.log.times.median_s - 1

    @property
    def spread_ratio(self) -> float:
        """Simulated robust standard deviation over the logged one."""
        return self.robust_std_pct / self.log.times.robust_std_pct

    @property
    def is_near(self) -> bool:
        """Whether the standard deviations agree within the target factor."""
        return 1 / ASKED_FACTOR <= self.spread_ratio <= ASKED_FACTOR

    @property
    def is_inside(self) -> bool:
        """Whether the logged standard deviation is in the range of 80 of 100 simulated runs."""
        low, high = self.robust_std_80_pct
        return low <= self.log.times.robust_std_pct <= high

    @property
    def num_long(self) -> int:
        """Number of long steps in the log."""
        return _num_long(self.log)

    @property
    def expected_long(self) -> float:
        """Expected number of long steps in so many steps."""
        layout, median_s = self.log.run.layout, self.log.times.median_s
        return share_beyond(LONG_SHARE, layout, median_s, self.noise) * len(self.log.times.steady_s)

    @property
    def is_long_near(self) -> bool:
        """Whether the numbers of long steps agree."""
        return compatible(self.num_long, self.expected_long)

    @property
    def is_first_near(self) -> bool:
        """Whether the first steps agree within the target factor."""
        return 1 / LONG_FACTOR <= self.first_step_s / float(self.log.times.seconds[0]) <= LONG_FACTOR


def compatible(seen: int, expected: float) -> bool:
    """Whether a count is within a factor of two of the expected number, or close enough to be chance.

    It can be chance if a Poisson count is as small or as large with a probability of at least e^-2: no event agrees with up to 2 expected,
    and one event agrees with 0.15 or more expected.
    """
    if seen and 1 / LONG_FACTOR <= expected / seen <= LONG_FACTOR:
        return True
    below = sum(math.exp(-expected) * expected**k / math.factorial(k) for k in range(seen))  # chance of fewer
    exactly = math.exp(-expected) * expected**seen / math.factorial(seen)
    return below + exactly >= RARE and 1 - below >= RARE


class NoiseFit:
    """A fit of the constants on all logs, or on all but some; expensive work is done only once."""

    def __init__(self, logs: Sequence[StepLog], report: Callable[[str, int, int], None] | None = None) -> None:
        self.logs = tuple(logs)
        self.seen: list[Seen] = []
        for number, log in enumerate(self.logs):
            self.seen.append(_seen(log))
            if report:
                report("reading logs", number + 1, len(self.logs))
        self._losses = [seen.losses() for seen in self.seen]
        self._run_spread = _run_spread()
        self._rows = drift_without_pipeline()
        self._done: dict[tuple[int, tuple[int, ...], tuple[int, ...]], Checked] = {}

    def fitted(self, left_out: Collection[int] = ()) -> FittedNoise:
        """The constants, fitted on all logs but those with the numbers in `left_out`."""
        kept = [i for i in range(len(self.logs)) if i not in left_out]
        by_class = {name: [i for i in kept if self.seen[i].kind == name] for name in sorted({self.seen[i].kind for i in kept})}
        levels, spread = self._levels(kept), self._level_spread(kept)
        # The timer decides which logs have similar stalls: before v5.0 it left out the time between steps.
        timers = {name: TIMERS[self.logs[numbers[0]].timer_is_wall] for name, numbers in by_class.items()} | {COMMON: COMMON}
        stalls = fitted_stalls([stalls_of(self.logs[i]) for i in kept], [timers[self.seen[i].kind] for i in kept])
        firsts = _drawn_together({name: [_first_excess_s(self.logs[i]) for i in numbers] for name, numbers in by_class.items()})
        afters = _drawn_together({name: _after_excesses_s([self.logs[i] for i in numbers]) for name, numbers in by_class.items()})
        classes = {
            name: Noise(
                jitter=JITTER,
                delay=round(math.exp(levels[name][0]), 9),
                drift=round(math.exp(levels[name][1]), 9),
                level_spread=spread,
                stalls_per_hour=stalls.per_hour[timers[name]],
                stall_spread=stalls.spread,
                stall_share=stalls.share[timers[name]],
                first_step_s=firsts[name],
                after_evaluation_s=afters[name],
                run_spread=self._run_spread,
            )
            for name in (*by_class, COMMON)
        }
        rows = self._rows  # from other jobs than the logs, so that leaving out logs does not change them
        classes[UNPIPELINED] = replace(classes[COMMON], drift=rows.drift, level_spread=rows.level_spread)
        return FittedNoise(classes, {name: len(by_class.get(name, kept)) for name in classes} | {UNPIPELINED: rows.num_rows})

    def _levels(self, kept: Sequence[int]) -> Mapping[str, tuple[float, float]]:
        """Logarithms of delay and drift by class.

        The best point of the grid, in turn with the mean of the classes, which counts as an observation.
        """
        totals: dict[str, Floats] = {}
        for i in kept:
            name = self.seen[i].kind
            totals[name] = totals[name] + self._losses[i] if name in totals else self._losses[i]
        levels: dict[str, tuple[float, float]] = {COMMON: EXPECTED}
        for _ in range(ROUNDS):
            middle = levels[COMMON]
            away = ((DELAYS[:, None] - middle[0]) ** 2 + (DRIFTS[None, :] - middle[1]) ** 2) / (2 * CLASS_SPREAD**2)
            for name, total in totals.items():
                row, column = divmod(int(np.argmin(total + away)), len(DRIFTS))
                levels[name] = (float(DELAYS[row]), float(DRIFTS[column]))
            points = np.array([*(levels[name] for name in totals), EXPECTED])  # the expected values count as one class
            levels[COMMON] = (float(points[:, 0].mean()), float(points[:, 1].mean()))
        return levels

    def _level_spread(self, kept: Sequence[int]) -> float:
        """Standard deviation of a run's level: 80 % of logs, each left out in turn, are off by at most 1.28 of it."""
        errors = []
        for left_out in kept:
            levels, seen = self._levels([i for i in kept if i != left_out]), self.seen[left_out]
            delay, drift = levels.get(seen.kind, levels[COMMON])
            errors.append(abs(float(seen.predicted(delay, drift)) - seen.spread))
        return round(float(np.quantile(errors, 0.8)) / NORMAL_90, 4) if errors else 0.0

    def checked(self, number: int, seeds: Sequence[int] = (1, 2, 3)) -> Checked:
        """Log `number` simulated with constants fitted without it."""
        return self._checked(number, (number,), seeds)

    def checked_without_machine(self, number: int, seeds: Sequence[int] = (1, 2, 3)) -> Checked:
        """Log `number` simulated with constants fitted without any log of its machine."""
        machine = self.logs[number].machine
        return self._checked(number, [i for i, log in enumerate(self.logs) if log.machine == machine], seeds)

    def _checked(self, number: int, left_out: Sequence[int], seeds: Sequence[int]) -> Checked:
        key = (number, tuple(left_out), tuple(seeds))
        if key not in self._done:  # a machine with one log is the same as leaving out that log
            log, values = self.logs[number], self.fitted(left_out).of(self.seen[number].kind)
            self._done[key] = Checked(log, values, simulated_as(log, values, seeds))
        return self._done[key]


def simulated_as(log: StepLog, values: Noise, seeds: Sequence[int]) -> tuple[StepTimes, ...]:
    """Typical simulated runs of as many steps and evaluations as the log has."""
    runs = simulate_typical(log.planned, len(log.times.seconds), seeds, values, log.first_steps)
    return tuple(StepTimes(steps.step_s, steps.is_first, "simulated") for steps in runs)


def stalls_of(log: StepLog) -> Stalls:
    """The log's stalls as shares of its median step, and how long its accelerators were seen."""
    shares = log.times.steady_s / log.times.median_s - 1
    return Stalls.seen(shares[shares > SHORTEST_STALL], log.run.num_accelerators * float(np.sum(log.times.steady_s)))


def _num_long(log: StepLog) -> int:
    return int(np.sum(log.times.steady_s > (1 + LONG_SHARE) * log.times.median_s))


def _first_excess_s(log: StepLog) -> float:
    return max(float(log.times.seconds[0]) - log.times.median_s, 0.0)


def _after_excesses_s(logs: Sequence[StepLog]) -> list[float]:
    """For each log whose timer includes everything, how much longer a step after an evaluation takes."""
    excesses_s = (log.times.seconds[log.first_steps[1:]] - log.times.median_s for log in logs if log.timer_is_wall)
    return [max(float(np.median(excess_s)), 0.0) for excess_s in excesses_s if len(excess_s)]


def _drawn_together(excesses_s: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """By class, the mean of an exponential distribution that has the median of its logs, so that a few huge values do not decide.

    The median of all logs counts as one more log of each class.
    """
    everything = [excess_s for values in excesses_s.values() for excess_s in values]
    common = float(np.median(everything)) if everything else 0.0
    medians = {
        name: (len(values) * float(np.median(values)) + common) / (len(values) + 1) if values else common
        for name, values in excesses_s.items()
    }
    return {name: round(median / math.log(2), 4) for name, median in (medians | {COMMON: common}).items()}


def _run_spread() -> float:
    """Mean slowness of a run relative to the best of its row, from the range of medians in rows of measured runs."""
    rows = read_table(MEASURED_CSV).rows
    chosen = [row for row in rows if row.text("benchmark") in BENCHMARKS and row.text("vendor") == "NVIDIA"]
    ranges = [float(row.text("run_spread_pct")) for row in chosen if row.text("run_spread_pct")]
    return round(float(np.mean(ranges)) / 100 / sum(1 / k for k in range(1, RUNS_PER_ROW)), 6)
