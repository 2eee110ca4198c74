"""A simulated run of a plan with noise, broken links and slow ranks: its steps, its evaluations, and its folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError, argument
from meshwright.files import read_bytes
from meshwright.ledger import Budget, Rate, amount
from meshwright.plan.plan import Plan, forecast_of
from meshwright.predict.software import Software
from meshwright.record.entries import PARTS, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.step_times import StepTimes
from meshwright.record.writer import RunWriter
from meshwright.simulator.fabric import Fabric, fabric_tier
from meshwright.simulator.noise import QUIET, Noise
from meshwright.simulator.noise_classes import usual_noise
from meshwright.simulator.planned_step import PlannedStep, Traffic, planned_step, traffic_of
from meshwright.simulator.step import Report, Setting, Slow, Steps, simulate
from meshwright.units import si

CREATED = "1970-01-01T00:00:00.000+00:00"  # of every simulated folder: the same seed gives the same bytes
NOTABLE_STALL = 0.02  # share of a step: longer stalls get an event
SLOWEST = 1000.0  # times as slow as others: a slower rank counts as dead


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of the simulated machine. By default it is as described, with the noise of logs of such runs."""

    noise: Noise | None = None  # None: as in logs of the plan's class
    jitter: float = 1.0  # factor on jitter, delay and drift
    fabric: Fabric = field(default_factory=Fabric)
    slow: tuple[Slow, ...] = ()
    storage_bytes_per_s: float = 0.0  # 0: as described
    stack: Software | None = None  # None: the plan's own release

    @property
    def words(self) -> tuple[str, ...]:
        """The conditions as a report lists them."""
        slow = (f"rank {one.rank} {one.factor:g} times as slow" for one in self.slow)
        storage = (f"storage of {si(self.storage_bytes_per_s, 'B/s')}",) if self.storage_bytes_per_s else ()
        return (self._noise_words, *self.fabric.words, *slow, *storage, *((f"software {self.stack.name}",) if self.stack else ()))

    @property
    def _noise_words(self) -> str:
        if self.noise is not None:
            return "no noise" if self.noise == QUIET else "other noise than logs show"
        return "noise as logs show it" if self.jitter == 1 else f"jitter {self.jitter:.6g} times that of logs"

    def noise_on(self, planned: PlannedStep) -> Noise:
        """The noise of runs of a plan."""
        usual = usual_noise(planned.forecast.job, planned.plan.layout) if self.noise is None else self.noise
        return usual.scaled(self.jitter)

    def check(self, plan: Plan) -> None:
        """Raise an InputError if these conditions are not possible on the plan's machine."""
        check_tiers(plan)
        self.fabric.check(plan.cluster)
        for one in self.slow:
            if not 0 <= one.rank < plan.layout.num_ranks:
                raise InputError(
                    f"there is no rank {one.rank}: the plan has {plan.layout.num_ranks} ranks",
                    where=argument("slow_rank"),
                    fix=f"choose from 0 to {plan.layout.num_ranks - 1}",
                )
            if not 1 <= one.factor <= SLOWEST:
                raise InputError(
                    f"rank {one.rank} is made {one.factor:g} times as slow",
                    where=argument("slow_rank"),
                    fix=f"give a factor from 1 to {SLOWEST:g}",
                )

    def planned(self, plan: Plan) -> PlannedStep:
        """The step of the plan on the machine with the degraded fabric and storage."""
        cluster = self.fabric.degraded(plan.cluster)
        if self.storage_bytes_per_s:
            cluster = replace(cluster, storage_bytes_per_s=self.storage_bytes_per_s)
        return planned_step(plan, cluster, self.stack or "")

    def setting(self, planned: PlannedStep, seed: int) -> Setting:
        """The inputs of a simulation of steps, with random hashes and affected NICs for this seed."""
        shares = self.fabric.stage_shares(planned.plan.cluster, planned.plan.layout, np.random.default_rng([seed, 3]))
        traffic: tuple[Traffic, ...] = ()
        if (shares != 1).any():
            by_share = {share: _traffic_at(planned, share) for share in np.unique(shares).tolist()}
            traffic = tuple(by_share[share] for share in shares.tolist())
        return Setting(noise=self.noise_on(planned), slow=self.slow, stage_traffic=traffic)


def check_tiers(plan: Plan) -> None:
    """Raise an InputError if a network tier has no plane left."""
    for tier in plan.cluster:
        if tier.num_planes < 1:
            raise InputError(f"tier {tier.name} has {tier.num_planes} planes", where=f"plan: cluster.{tier.name}", fix="give at least one")


def _traffic_at(planned: PlannedStep, share: float) -> Traffic:
    """Traffic between replicas whose NICs have only a share of the fabric."""
    cluster = planned.plan.cluster
    tier = fabric_tier(cluster)
    less = replace(cluster, tiers=(*cluster.tiers[:-1], replace(tier, bytes_per_s=tier.bytes_per_s * share)))
    return traffic_of(forecast_of(replace(planned.plan, cluster=less), planned.forecast.job.software))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRun:
    """The steps and evaluations of a simulated run."""

    planned: PlannedStep
    conditions: Conditions
    seed: int
    steps: Steps
    evaluated_after: tuple[int, ...]  # number of steps before each evaluation
    evaluation_s: float  # of one evaluation
    asked_steps: int
    is_cut: bool = False  # whether the budget ended it

    @property
    def complete(self) -> bool:
        """Whether the simulation was not interrupted."""
        return len(self.steps) == self.asked_steps

    @property
    def times(self) -> StepTimes:
        """The step times as a log would give them."""
        return StepTimes(self.steps.step_s, self.steps.is_first, "simulated")

    @property
    def simulated_s(self) -> float:
        """Seconds of the steps that were simulated, and of their evaluations."""
        return float(np.sum(self.steps.step_s)) + len(self.evaluated_after) * self.evaluation_s

    @property
    def is_whole(self) -> bool:
        """Whether the steps are those of the whole workload."""
        return len(self.steps) == self.planned.plan.workload.num_steps()

    @property
    def time_to_train_s(self) -> float | None:
        """Seconds of the whole workload: simulated, or extrapolated from a part of it; None if it has no end.

        In an extrapolation, every step takes as long as the mean steady step.
        """
        workload = self.planned.plan.workload
        if self.is_whole or not workload.num_steps():
            return self.simulated_s if self.is_whole else None
        return workload.duration_s(float(np.mean(self.times.steady_s)), self.evaluation_s)

    @property
    def mean_exposed_s(self) -> dict[str, float]:
        """Mean exposed seconds of each axis in a steady step."""
        return {part.removeprefix("exposed_"): mean_s for part, mean_s in self.mean_parts_s.items() if part.startswith("exposed_")}

    @property
    def mean_parts_s(self) -> dict[str, float]:
        """Mean seconds of every part of a steady step; of any step if none is steady."""
        return {part: float(np.mean(self.steps.parts_s[part][self._steady])) for part in PARTS}

    @property
    def num_steady_steps(self) -> int:
        """Number of steps behind the mean parts: those that follow neither a start nor an evaluation, or all if there are none."""
        return int(self._steady.sum())

    @property
    def _steady(self) -> NDArray[np.bool_]:
        return ~self.steps.is_first if not self.steps.is_first.all() else np.ones(len(self.steps), dtype=bool)


def run_plan(
    plan: Plan,
    conditions: Conditions,
    num_steps: int = 0,
    seed: int = 0,
    report: Report | None = None,
    planned: PlannedStep | None = None,
    within_s: float = math.inf,
) -> SimulatedRun:
    """Simulate `num_steps` steps of the plan, or to the end of the workload, or to the last step within a time limit."""
    conditions.check(plan)
    count = num_steps or plan.workload.num_steps()
    if count < 1:
        raise InputError(
            f"{plan.workload.name} states neither tokens nor a target, so the number of steps to simulate is not known",
            where=argument("steps"),
            fix=f"give {argument('steps', 324)}, for example",
        )
    planned = planned or conditions.planned(plan)
    evaluated = plan.workload.evaluated_steps(count)
    firsts = np.array([0, *evaluated])
    steps = simulate(planned, count, seed, conditions.setting(planned, seed), firsts, report)
    run = SimulatedRun(
        planned=planned,
        conditions=conditions,
        seed=seed,
        steps=steps,
        evaluated_after=tuple(step for step in evaluated if step <= len(steps)),
        evaluation_s=planned.forecast.outcome.evaluation_s,
        asked_steps=count,
    )
    return _within(run, within_s)


def _within(run: SimulatedRun, limit_s: float) -> SimulatedRun:
    """The run up to the last step, with its evaluation, that ends within `limit_s`; at least the first step."""
    if run.simulated_s <= limit_s:
        return run
    evaluated = np.zeros(len(run.steps))
    evaluated[np.array(run.evaluated_after, dtype=np.int64) - 1] = run.evaluation_s
    ends_s = np.cumsum(run.steps.step_s + evaluated)
    kept = max(int(np.searchsorted(ends_s, limit_s, side="right")), 1)
    parts_s = {part: column[:kept] for part, column in run.steps.parts_s.items()}
    columns = {name: getattr(run.steps, name)[:kept] for name in ("step_s", "stall_s", "slowest_replica", "is_first")}
    evaluations = tuple(step for step in run.evaluated_after if step <= kept)
    return replace(run, steps=Steps(parts_s=parts_s, **columns), evaluated_after=evaluations, is_cut=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverSeeds:
    """A number over many seeds: its mean, the range of 80 of 100 runs, and the standard error of the mean."""

    mean: float
    low: float
    high: float
    standard_error: float

    @staticmethod
    def of(values: Sequence[float] | NDArray[np.float64]) -> OverSeeds:
        """The statistics of `values`, one per seed."""
        array = np.asarray(values, dtype=np.float64)
        low, high = np.percentile(array, [10, 90])
        error = float(np.std(array, ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan
        return OverSeeds(mean=float(np.mean(array)), low=float(low), high=float(high), standard_error=error)


def seeds_of(
    plan: Plan, conditions: Conditions, num_steps: int, first_seed: int, num_seeds: int, report: Report | None = None
) -> Iterator[SimulatedRun]:
    """The same run with one seed after another."""
    planned = conditions.planned(plan)
    for number in range(num_seeds):
        yield run_plan(plan, conditions, num_steps, first_seed + number, planned=planned)
        if report:
            report("simulating runs", number + 1, num_seeds)


def new_folder(run: SimulatedRun, runs: Path, name: str, plan_file: Path, num_steps: int | None) -> RunWriter:
    """A writer for the folder of a simulated run of so many steps; None if days are simulated."""
    plan = run.planned.plan
    header = RunHeader(
        name=name,
        kind="simulated",
        seed=run.seed,
        num_ranks=plan.layout.num_ranks,
        machine=plan.cluster.name,
        sequence_length=plan.workload.seq_len,
        num_steps=num_steps,
        last_step=num_steps,
        created=CREATED,
        plan_file=plan_file.name,
        conditions=run.conditions.words,
    )
    return RunWriter.create(runs, header, read_bytes(plan_file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """What a simulated run is paid with, as its folder records it."""

    rate: Rate | None = None
    budget: Budget | None = None

    @property
    def detail(self) -> dict[str, Any]:
        """Fields of the event that starts the run."""
        price = {"price": self.rate.to_json()} if self.rate else {}
        return price | ({"budget_usd": str(self.budget.usd)} if self.budget else {})

    def write_over(self, writer: RunWriter, step: int, time_s: float) -> None:
        """The event of a budget that ends the run."""
        assert self.budget is not None
        usd, spent = self.budget.usd, self.budget.cost_usd(time_s)
        message = f"the budget of {amount(usd)} ends the run: {amount(spent)} are spent at step {step}"
        writer.event("budget", step, time_s, message=message, budget_usd=str(usd), spent_usd=f"{spent:.6f}")


def write_run(run: SimulatedRun, runs: Path, name: str, plan_file: Path, paid: Paid | None = None) -> Path:
    """The run's folder, in the form that training writes too."""
    paid = paid or Paid()
    with new_folder(run, runs, name, plan_file, run.asked_steps) as writer:
        writer.steps(records(run))
        _write_events(run, writer, paid)
        if run.is_cut:
            end_s = round(run.simulated_s, 6)
            paid.write_over(writer, len(run.steps), end_s)
            writer.event("stopped", len(run.steps), end_s, reason="budget")
        writer.finish("finished" if run.complete else "stopped")
        return writer.folder


def records(run: SimulatedRun) -> Iterator[StepRecord]:
    """The steps as they are written, to the nanosecond."""
    batch, tokens = run.planned.plan.workload.global_batch, run.planned.plan.workload.tokens_per_step
    columns = {part: (run.steps.parts_s[part].round(9) + 0.0).tolist() for part in PARTS}
    for i, seconds in enumerate(run.steps.step_s.tolist()):
        yield StepRecord(
            step=i + 1,
            samples=(i + 1) * batch,
            loss=None,
            grad_norm=None,
            step_s=round(seconds, 9),
            parts_s={part: column[i] for part, column in columns.items()},
            extra={"tokens_per_s": round(tokens / seconds, 3), "slowest_replica": float(run.steps.slowest_replica[i])},
        )


def _write_events(run: SimulatedRun, writer: RunWriter, paid: Paid) -> None:
    """Start, evaluations and stalls at their simulated times."""
    ends_s = np.cumsum(run.steps.step_s)
    writer.event("start", 0, 0.0, seed=run.seed, **paid.detail)
    evaluated = 0
    for step in sorted({*run.evaluated_after, *_stalled(run)}):
        passed_s = float(ends_s[step - 1]) + evaluated * run.evaluation_s
        if step in _stalled(run):
            writer.event("stall", step, round(passed_s, 6), seconds=round(float(run.steps.stall_s[step - 1]), 6))
        if step in run.evaluated_after:
            writer.event("evaluation", step, round(passed_s + run.evaluation_s, 6), seconds=round(run.evaluation_s, 6))
            evaluated += 1


def _stalled(run: SimulatedRun) -> set[int]:
    return set((np.flatnonzero(run.steps.stall_s > NOTABLE_STALL * run.planned.step_s) + 1).tolist())
