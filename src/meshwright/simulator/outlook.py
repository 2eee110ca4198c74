"""The results of weeks: effective time, cost of lost time, probabilities of a date and a budget, and the same for other sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.checkpoints import daly_interval_s, young_interval_s
from meshwright.cost.money import cost_usd
from meshwright.describe.failures import Failures
from meshwright.plan.plan import Plan
from meshwright.predict.goodput import advised_interval_s, advised_spares
from meshwright.simulator.campaign import Campaign, Report, Weeks, weeks
from meshwright.simulator.noise import QUIET, mean_stall_s
from meshwright.simulator.planned_step import PlannedStep
from meshwright.simulator.run import Conditions, OverSeeds, SimulatedRun, run_plan
from meshwright.units import DAY

Floats = NDArray[np.float64]

SAMPLED_STEPS = 64  # that represent all steps of weeks
SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
WHOLE_SEEDS = 100  # runs of the whole workload, whose mean is the time to train
WHOLE_INTERRUPTIONS = 2000  # of such a run: more do not make the mean more certain, and it is extrapolated from there
NORMAL_90 = 1.2815515655446004  # 80 % of a normal distribution are within so many standard deviations


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The mean of simulated steps, which converts seconds of training into steps."""

    seconds: float
    standard_error_s: float
    parts_s: dict[str, float]
    median_s: float
    robust_std_pct: float
    evaluations_s: float  # of all evaluations of the whole workload
    workload_steps: int  # of the whole workload; 0 if it has no end
    run_spread: float  # of the noise: how much slower a run is than the best of its kind, on average

    @property
    def workload_s(self) -> float:
        """Seconds of work until the workload is done, evaluations included; infinite if it has no end."""
        return self.workload_steps * self.seconds + self.evaluations_s if self.workload_steps else math.inf


def mean_step(plan: Plan, conditions: Conditions, seed: int) -> MeanStep:
    """The mean step under these conditions. On the machine as described, with the noise of logs, the median step is the predicted one.

    Large machines are predicted from the median steps of logs, so a prediction already contains the usual noise, and it is not added again.
    What makes the mean longer than the median is added, above all stalls. They are rare and long, and a sample would have too many or too
    few of them, so their mean is used. Without noise, steps are as simulated.
    """
    planned = conditions.planned(plan)
    noise = conditions.noise_on(planned)
    run = _sample(plan, conditions, seed, planned)
    usual = Conditions(stack=conditions.stack)
    in_prediction = 1.0
    if noise != QUIET:
        alike = run if conditions == usual else _sample(plan, usual, seed, usual.planned(plan))
        in_prediction = alike.times.median_s / plan.step_s
    step_s, parts_s = run.times.steady_s / in_prediction, {part: part_s / in_prediction for part, part_s in run.mean_parts_s.items()}
    stall_s = mean_stall_s(plan.layout.num_ranks, planned.step_s, noise)
    return MeanStep(
        seconds=float(np.mean(step_s)) + stall_s,
        standard_error_s=float(np.std(step_s, ddof=1) / math.sqrt(len(step_s))),
        parts_s={**parts_s, "overhead": parts_s["overhead"] + stall_s},
        median_s=run.times.median_s / in_prediction,
        robust_std_pct=run.times.robust_std_pct,
        evaluations_s=plan.workload.num_evaluations(plan.workload.num_steps()) * run.evaluation_s,
        workload_steps=plan.workload.num_steps(),
        run_spread=noise.run_spread,
    )


def _sample(plan: Plan, conditions: Conditions, seed: int, planned: PlannedStep) -> SimulatedRun:
    """Steps that represent all steps, without stalls."""
    without = replace(conditions, noise=replace(conditions.noise_on(planned), stalls_per_hour=0.0), jitter=1.0)
    return run_plan(plan, without, SAMPLED_STEPS + 1, seed, planned=planned)


def usd_per_accelerator_hour(plan: Plan, conditions: Conditions) -> float | None:
    """The price that a forecast uses; None if none is listed."""
    offer = conditions.planned(plan).forecast.outcome.offer
    return offer.price.usd_per_accelerator_hour if offer else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outlook:
    """Weeks of one plan."""

    campaign: Campaign
    weeks: Weeks
    step: MeanStep
    usd_per_hour: float | None  # of one accelerator
    time_to_train_s: float | None  # mean time of the whole workload; None if it has no end, or if the simulation was interrupted

    @property
    def goodput(self) -> OverSeeds:
        """Effective time, of the wall clock."""
        return OverSeeds.of(self.weeks.goodput)

    @property
    def interruptions(self) -> OverSeeds:
        """Number of interruptions of all causes."""
        return OverSeeds.of(self.weeks.interruptions.sum(axis=1).astype(np.float64))

    @property
    def by_cause(self) -> dict[str, float]:
        """Mean number of interruptions by cause."""
        means = self.weeks.interruptions.mean(axis=0).tolist()
        return {cause.name: mean for cause, mean in zip(self.campaign.failures.causes, means, strict=False)}

    @property
    def num_steps(self) -> OverSeeds:
        """Number of steps that were kept."""
        return OverSeeds.of(self.weeks.work_s / self.step.seconds)

    @property
    def workload_done(self) -> float:
        """The share of seeds in which the workload is done."""
        return float(np.mean(self.weeks.work_s >= self.step.workload_s))

    def paid_usd(self, seconds: Floats, *, spares: bool = True) -> Floats | None:
        """US dollars for so many seconds of the machine with its spare nodes; None without a price."""
        if self.usd_per_hour is None:
            return None
        nodes = self.campaign.num_spares * self.campaign.accelerators_per_node if spares else 0
        return np.asarray(cost_usd(self.campaign.num_accelerators + nodes, seconds, self.usd_per_hour))


def campaign_of(plan: Plan, failures: Failures, interval_s: float | None, num_spares: int | None, dead_nodes: int = 0) -> Campaign:
    """The campaign of the plan, with the advised values for options that the user does not give."""
    size, per_node = plan.cluster.num_accelerators, plan.cluster.used_per_node
    return Campaign(
        failures=failures,
        num_accelerators=size,
        accelerators_per_node=per_node,
        interval_s=advised_interval_s(failures, size) if interval_s is None else interval_s,
        num_spares=advised_spares(failures, size, per_node) if num_spares is None else num_spares,
        dead_nodes=dead_nodes,
    )


def outlook(
    plan: Plan, conditions: Conditions, campaign: Campaign, seed: int, num_seeds: int, horizon_s: float, report: Report | None = None
) -> Outlook:
    """Simulate so many days of a plan, over many seeds."""
    conditions.check(plan)
    step, seen = mean_step(plan, conditions, seed), weeks(campaign, seed, num_seeds, horizon_s, report=report)
    return Outlook(
        campaign=campaign,
        step=step,
        weeks=seen,
        usd_per_hour=usd_per_accelerator_hour(plan, conditions),
        time_to_train_s=_time_to_train_s(campaign, step.workload_s, seed, num_seeds) if seen.complete else None,
    )


def _time_to_train_s(campaign: Campaign, work_s: float, seed: int, num_seeds: int) -> float | None:
    """Mean seconds of runs until the whole workload is done, for any number of simulated days; None without an end or without progress.

    A single run of some days may by chance have no interruption, or a long wait for a node, so its pace says little about the whole
    workload.
    """
    if not math.isfinite(campaign.expected.wall_s(work_s)):
        return None
    walked_s = min(work_s, WHOLE_INTERRUPTIONS * campaign.expected.between_s * campaign.expected.work)
    runs = weeks(campaign, seed, max(num_seeds, WHOLE_SEEDS), work_s=walked_s)
    return float(np.mean(runs.wall_s)) * work_s / walked_s if runs.complete else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Finish:
    """When the whole workload is done, over seeds that also differ in the error of the prediction."""

    wall_s: Floats
    cost_usd: Floats | None

    def chance_by(self, seconds: float) -> float:
        """Probability of being done so many seconds after the start."""
        return float(np.mean(self.wall_s <= seconds))

    def chance_under(self, usd: float) -> float | None:
        """Probability of paying no more than this; None without a price."""
        return None if self.cost_usd is None else float(np.mean(self.cost_usd <= usd))


def finish(plan: Plan, seen: Outlook, run_spread: float, seed: int, num_seeds: int, report: Report | None = None) -> Finish:
    """The end of the plan's workload, with interruptions, how slow this run is among its kind, and the interval of the prediction."""
    rng = np.random.default_rng([seed, 5])
    step_s = seen.step.seconds * _uncertain(plan, rng.standard_normal(num_seeds)) * (1 + run_spread * rng.standard_exponential(num_seeds))
    work_s = plan.workload.num_steps() * step_s + seen.step.evaluations_s
    ended = weeks(seen.campaign, seed, num_seeds, work_s=work_s, report=report)
    if not ended.complete:
        raise KeyboardInterrupt  # runs that were interrupted say nothing about their end
    return Finish(wall_s=ended.wall_s, cost_usd=seen.paid_usd(ended.wall_s))


def _uncertain(plan: Plan, deviates: Floats) -> Floats:
    """Factors on the predicted step whose middle 80 % are the interval of the plan, with a separate spread on each side."""
    up, down = math.log(plan.high_s / plan.step_s), math.log(plan.step_s / plan.low_s)
    return np.exp(deviates / NORMAL_90 * np.where(deviates > 0, up, down))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What to expect on the same kind of machine with another number of accelerators."""

    num_accelerators: int
    between_s: float  # seconds between interruptions
    interval_s: float  # advised between checkpoints
    young_s: float
    daly_s: float
    num_spares: int
    interruptions_per_day: float
    goodput: float


def sizes(
    failures: Failures, accelerators_per_node: int, seed: int, days: float, num_seeds: int, of: Sequence[int] = SIZES
) -> Iterator[Size]:
    """Advice and effective time for one size after the other."""
    for size in of:
        interval_s, spares = advised_interval_s(failures, size), advised_spares(failures, size, accelerators_per_node)
        campaign = Campaign(
            failures=failures, num_accelerators=size, accelerators_per_node=accelerators_per_node, interval_s=interval_s, num_spares=spares
        )
        seen = weeks(campaign, seed, num_seeds, days * DAY)
        between_s = failures.mean_time_between_s(size)
        yield Size(
            num_accelerators=size,
            between_s=between_s,
            interval_s=interval_s,
            young_s=float(young_interval_s(failures.checkpoint_s, between_s)),
            daly_s=float(daly_interval_s(failures.checkpoint_s, between_s)),
            num_spares=spares,
            interruptions_per_day=float(seen.interruptions.sum(axis=1).mean()) / days,
            goodput=float(seen.goodput.mean()),
        )
