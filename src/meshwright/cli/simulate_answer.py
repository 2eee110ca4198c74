"""The answer of `meshwright simulate`: runs of steps, the same without their slow ranks, or weeks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from meshwright.cli.simulate_question import Ask
from meshwright.cost.money import cost_usd
from meshwright.ledger import Ledger, ledger_of
from meshwright.simulate.exposure import Exposed, exposed_between_replicas
from meshwright.simulate.outlook import SAMPLED_STEPS, SIZES, Finish, Outlook, Size, finish, outlook, sizes
from meshwright.simulate.run import OverSeeds, SimulatedRun, run_plan, write_run
from meshwright.simulate.weeks_record import write_weeks
from meshwright.units import DAY, MINUTE

Progress = Callable[[str, int, int], None]
FINISH_SEEDS = 1000
LEDGER_STEPS = 20_000  # that are read back for the closing lines: a second at most
MOST_SIZE_SEEDS = 20  # of each size: large machines are interrupted many times


@dataclass(frozen=True, kw_only=True)
class Answer:
    """All there is to print."""

    ask: Ask
    run: SimulatedRun | None = None  # of the first seed
    over_seeds: dict[str, OverSeeds] | None = None
    without_slow: SimulatedRun | None = None  # the same run with all ranks alike
    outlook: Outlook | None = None
    finish: Finish | None = None
    sizes: tuple[Size, ...] = ()
    folder: Path | None = None
    is_cut: bool = False  # the budget ended it
    interrupted: bool = False

    @property
    def cost_usd(self) -> float | None:
        """What the run costs."""
        if self.outlook:
            paid = self.outlook.paid_usd(self.outlook.weeks.wall_s)
            return None if paid is None else float(np.mean(paid))
        if self.ask.rate is None or self.run is None:
            return None
        price = float(self.ask.rate.usd_per_gpu_hour)
        return float(cost_usd(self.ask.plan.cluster.num_accelerators, self.run.simulated_s, price))

    @cached_property
    def took(self) -> Ledger | None:
        """The ledger of the run that was written; None where it has so many steps that reading them would take seconds."""
        is_short = self.run is None or len(self.run.steps) <= LEDGER_STEPS
        return ledger_of(self.folder) if self.folder and is_short else None

    @property
    def exposed(self) -> Exposed | None:
        """How far the exposed time between replicas may be off; None where drawn hashes or hit NICs decide it."""
        wishes = self.ask.wishes
        if self.run is None or wishes.nics_hit or wishes.routing == "hashed":
            return None
        return exposed_between_replicas(self.run.job.forecast.job, self.run.job.plan.layout)

    @property
    def time_to_train_s(self) -> float | None:
        """Seconds of the whole workload: of the run, extrapolated from a part of it, or at the pace of the weeks; None without an end."""
        if self.run is not None:
            return self.run.time_to_train_s
        assert self.outlook is not None
        if self.finish is not None:
            return float(np.mean(self.finish.wall_s))
        num_steps, pace = self.ask.plan.workload.num_steps(), self.outlook.goodput.mean
        step = self.outlook.step
        return (num_steps * step.seconds + step.evaluations_s) / pace if num_steps and pace else None

    @property
    def waste_usd(self) -> float | None:
        """What the time that did not count costs, spares included."""
        if self.outlook is None:
            return None
        whole = self.outlook.paid_usd(self.outlook.weeks.wall_s)
        useful = self.outlook.paid_usd(self.outlook.weeks.work_s, spares=False)
        return None if whole is None or useful is None else float(np.mean(whole - useful))


def answered(ask: Ask, progress: Progress) -> Answer:
    """What was asked; the first seed's run is written as a folder."""
    return _weeks(ask, progress) if ask.campaign else _steps(ask, progress)


def _steps(ask: Ask, progress: Progress) -> Answer:
    wishes, plan, conditions = ask.wishes, ask.plan, ask.conditions
    found: list[dict[str, float]] = []
    first: SimulatedRun | None = None
    interrupted = False
    job = conditions.job(plan)
    try:
        for number in range(wishes.seeds):
            report = progress if wishes.seeds == 1 else None
            run = run_plan(plan, conditions, wishes.steps or 0, wishes.seed + number, report, job, ask.within_s)
            first = first or run
            found.append(_figures(run))
            interrupted = not run.complete and not run.is_cut
            if interrupted:
                break
            progress("simulating runs", number + 1, wishes.seeds)
    except KeyboardInterrupt:
        if first is None:
            raise
        interrupted = True
    assert first is not None
    alike = None
    if conditions.slow and not interrupted:
        alike = run_plan(plan, replace(conditions, slow=()), wishes.steps or 0, wishes.seed, job=job, within_s=ask.within_s)
    return Answer(
        ask=ask,
        run=first,
        over_seeds={key: OverSeeds.of([one[key] for one in found]) for key in found[0]} if len(found) > 1 else None,
        without_slow=alike,
        is_cut=first.is_cut,
        folder=write_run(first, wishes.runs, ask.name, ask.plan_file, ask.paid),
        interrupted=interrupted,
    )


def _figures(run: SimulatedRun) -> dict[str, float]:
    exposed = {f"mean_exposed_{axis}_s": value for axis, value in run.mean_exposed_s.items() if value > 0}
    return {
        "median_step_s": run.times.median_s,
        "mean_step_s": float(np.mean(run.times.steady_s)),
        "robust_std_pct": run.times.robust_std_pct,
        "simulated_min": run.simulated_s / MINUTE,
        **({} if run.time_to_train_s is None else {"time_to_train_min": run.time_to_train_s / MINUTE}),
        **exposed,
    }


def _weeks(ask: Ask, progress: Progress) -> Answer:
    wishes, plan, conditions = ask.wishes, ask.plan, ask.conditions
    assert ask.campaign is not None and wishes.days is not None
    horizon_s = min(wishes.days * DAY, ask.within_s)
    seen = outlook(plan, conditions, ask.campaign, wishes.seed, wishes.seeds, horizon_s, progress)
    seen = replace(seen, usd_per_hour=float(ask.rate.usd_per_gpu_hour) if ask.rate else None)
    interrupted = not seen.weeks.complete
    ended: Finish | None = None
    table: list[Size] = []
    try:
        if not interrupted and (ask.finish_by_s is not None or ask.budget is not None):
            ended = finish(plan, seen, conditions.noise.run_spread, wishes.seed, max(wishes.seeds, FINISH_SEEDS), progress)
        if not interrupted and wishes.sizes:
            per_node = plan.cluster.accelerators_per_node
            for size in sizes(ask.campaign.failures, per_node, wishes.seed, wishes.days, min(wishes.seeds, MOST_SIZE_SEEDS)):
                table.append(size)
                progress("simulating other sizes", len(table), len(SIZES))
    except KeyboardInterrupt:
        interrupted = True
    sample = run_plan(plan, conditions, SAMPLED_STEPS + 1, wishes.seed)
    is_cut = seen.weeks.complete and horizon_s < wishes.days * DAY
    return Answer(
        ask=ask,
        outlook=seen,
        finish=ended,
        sizes=tuple(table),
        folder=write_weeks(seen, sample, wishes.runs, ask.name, ask.plan_file, ask.paid, cut=is_cut),
        is_cut=is_cut,
        interrupted=interrupted,
    )
