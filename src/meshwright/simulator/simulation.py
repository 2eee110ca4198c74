"""The simulation of a plan: hundreds of steps with noise and broken links, or weeks with failures.

The command line and notebooks call `simulate`, which returns a `Simulation` with all results.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from meshwright.arguments import typed
from meshwright.cost.money import cost_usd
from meshwright.describe.failures import failures as failures_named
from meshwright.describe.load import load_cluster
from meshwright.errors import InputError, argument
from meshwright.ledger import Budget, Ledger, Rate, ledger_of, no_price, predicted_s, rate_of, read_budget, read_rate
from meshwright.plan.objective import read_duration
from meshwright.plan.plan import Plan, plan_of, read_plan, stack_of
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Spread
from meshwright.record.header import check_name
from meshwright.simulator.campaign import Campaign
from meshwright.simulator.exposure import Exposed, exposed_between_replicas
from meshwright.simulator.fabric import Fabric
from meshwright.simulator.noise import QUIET
from meshwright.simulator.outlook import SAMPLED_STEPS, SIZES, Finish, Outlook, Size, campaign_of, finish, outlook
from meshwright.simulator.outlook import sizes as other_sizes
from meshwright.simulator.planned_step import check_plan
from meshwright.simulator.run import Conditions, OverSeeds, Paid, SimulatedRun, run_plan, write_run
from meshwright.simulator.step import Slow
from meshwright.simulator.weeks_energy import weeks_energy_j
from meshwright.simulator.weeks_record import write_weeks
from meshwright.units import DAY, GB, per_cent

Progress = Callable[[str, int, int], None]
SlowRanks = Mapping[int, float] | Sequence[str]  # factor by rank, or `RANK=FACTOR`
FINISH_SEEDS = 1000
LEDGER_STEPS = 20_000  # that are read back for the closing lines: a second at most
MOST_SIZE_SEEDS = 20  # of each size: large machines are interrupted many times
RANGES = {  # of the options that are numbers, as the command line has them
    "steps": (1, 1_000_000),
    "days": (0, 10_000),
    "seed": (0, 2**62),
    "seeds": (1, 100_000),
    "jitter": (0, 1000),
    "planes_lost": (0, 1_000_000),
    "nics_hit": (0, 1_000_000_000),
    "spares": (0, 100_000),
    "failed_nodes": (0, 1_000_000_000),
}


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """The result of `simulate`: a run of steps, or weeks with failures, for the first seed and over all seeds.

    Attributes:
        plan: The plan that was simulated.
        conditions: Noise, slow ranks, lost links and storage of the simulated machine.
        seed: The first seed.
        seeds: Number of seeds.
        days: Simulated days; None if steps were simulated.
        finish_by_s: Seconds in which the run should be done, if `finish_by` was given.
        rate: US dollars per accelerator-hour, if known.
        budget: The budget, if one was given.
        run: The simulated steps of the first seed.
        over_seeds: Mean and range of each quantity over all seeds, if there are several.
        without_slow: The run of the first seed without slow ranks, if there are any.
        outlook: The simulated weeks, over all seeds.
        finish: Probabilities of finishing in time and within the budget.
        sizes: Advice for other numbers of accelerators, if `sizes` was set.
        folder: The run folder, if one was written.
        is_cut: Whether the budget ended the run.
        interrupted: Whether the user interrupted the simulation.
    """

    plan: Plan
    conditions: Conditions
    seed: int
    seeds: int = 1
    days: float | None = None  # None: steps were simulated
    finish_by_s: float | None = None
    rate: Rate | None = None  # what an accelerator-hour costs
    budget: Budget | None = None
    run: SimulatedRun | None = None  # of the first seed
    over_seeds: dict[str, OverSeeds] | None = None
    without_slow: SimulatedRun | None = None  # the same run with all ranks alike
    outlook: Outlook | None = None
    finish: Finish | None = None
    sizes: tuple[Size, ...] = ()
    folder: Path | None = None  # the run folder, where one was written
    is_cut: bool = False  # the budget ended it
    interrupted: bool = False

    @property
    def cost_usd(self) -> float | None:
        """US dollars that the simulated run costs; None without a price."""
        if self.outlook:
            paid = self.outlook.paid_usd(self.outlook.weeks.wall_s)
            return None if paid is None else float(np.mean(paid))
        if self.rate is None or self.run is None:
            return None
        price = float(self.rate.usd_per_gpu_hour)
        return float(cost_usd(self.plan.cluster.num_accelerators, self.run.simulated_s, price))

    @cached_property
    def ledger(self) -> Ledger | None:
        """The ledger of the run folder; None if no folder was written, or if it has too many steps to be read quickly."""
        is_short = self.run is None or len(self.run.steps) <= LEDGER_STEPS
        return ledger_of(self.folder) if self.folder and is_short else None

    @cached_property
    def energy_j(self) -> float | None:
        """Joules at the wall: of days, the mean of all seeds, as the cost is; of steps, those of the run that was written. Else None."""
        if self.outlook:
            return weeks_energy_j(self.plan, self.outlook)
        return self.ledger.energy_j if self.ledger else None

    @property
    def exposed(self) -> Exposed | None:
        """The interval of the exposed time between replicas; None with randomly hashed paths or with NICs that lost planes."""
        fabric = self.conditions.fabric
        if self.run is None or fabric.nics_hit or fabric.routing == "hashed":
            return None
        return exposed_between_replicas(self.run.planned.forecast.job, self.run.planned.plan.layout)

    @property
    def time_to_train_s(self) -> float | None:
        """Seconds of the whole workload: simulated, extrapolated, or the mean of many runs with failures; None if it has no end."""
        if self.run is not None:
            return self.run.time_to_train_s
        assert self.outlook is not None
        return self.outlook.time_to_train_s

    @property
    def waste_usd(self) -> float | None:
        """US dollars paid for time without progress, spare nodes included."""
        if self.outlook is None:
            return None
        whole = self.outlook.paid_usd(self.outlook.weeks.wall_s)
        useful = self.outlook.paid_usd(self.outlook.weeks.work_s, spares=False)
        return None if whole is None or useful is None else float(np.mean(whole - useful))

    @property
    def step_s(self) -> float:
        """Median seconds of the simulated steps."""
        if self.run is not None:
            return self.run.times.median_s
        assert self.outlook is not None
        return self.outlook.step.median_s

    @property
    def goodput(self) -> float | None:
        """Share of the time in which the run makes progress; None where only steps were simulated."""
        return self.outlook.goodput.mean if self.outlook else None

    def to_json(self) -> dict[str, Any]:
        """The object that `meshwright simulate --json` prints."""
        from meshwright.say.simulation import simulation_document

        return simulation_document(self).to_json()

    def __repr__(self) -> str:
        return f"Simulation({self})"

    def __str__(self) -> str:
        what = (
            f"{self.days:g} day{'s' * (self.days != 1)}, effective time {per_cent(self.outlook.goodput.mean, '.2f')}"
            if self.outlook
            else f"median step {self.step_s:.4g} s"
        )
        return f"{self.plan.name}, seed {self.seed}: {what}"

    def _repr_html_(self) -> str:
        from meshwright.say.html import fragment
        from meshwright.say.simulation import simulation_document

        return fragment(simulation_document(self))


@typed
def simulate(
    plan: Plan | Forecast | str | Path,
    *,
    steps: int | None = None,
    days: float | None = None,
    seed: int = 0,
    seeds: int = 1,
    jitter: float = 1.0,
    noise: bool = True,
    slow_rank: SlowRanks = (),
    planes_lost: int = 0,
    nics_hit: int = 0,
    links_lost: float = 0.0,
    neighbour: float = 0.0,
    routing: str = "",
    storage: float | None = None,
    failures: str = "",
    checkpoint_every: str = "",
    spares: int | None = None,
    failed_nodes: int = 0,
    finish_by: str = "",
    budget: str | None = None,
    price: str | None = None,
    sizes: bool = False,
    cluster: str = "",
    software: str = "",
    name: str = "",
    runs: str | Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Simulation:
    """Simulate a plan, as `meshwright simulate` does: a number of steps, or days with failures.

    Args:
        plan: A plan, a forecast, or the path of a plan file.
        steps: Number of steps; by default all steps of the workload.
        days: Days to simulate with failures, instead of steps.
        seed: First seed of the random numbers. The same seed gives the same result.
        seeds: Number of runs, each with the next seed.
        jitter: Factor on the jitter that real logs show.
        noise: Whether to add noise; without it steps are as predicted.
        slow_rank: Slow ranks: a factor by rank (`{3: 1.3}`), or texts `3=1.3`.
        planes_lost: Number of network planes that NICs have lost.
        nics_hit: Number of NICs that lost planes; 0: all.
        links_lost: Share of the links between switches that are down, from 0 to 1.
        neighbour: Share of these links that another job uses, from 0 to 1.
        routing: `hashed`, `adaptive` or `spray`; by default as the cluster describes it.
        storage: Rate of storage in GB/s; by default as the cluster describes it.
        failures: With `days`: failure rates, `llama3` (the default), `none` or a TOML file.
        checkpoint_every: With `days`: work between checkpoints, such as `10min`; by default as advised.
        spares: With `days`: number of spare nodes; by default as advised.
        failed_nodes: With `days`: number of nodes that are broken at the start.
        finish_by: With `days`: a duration (`90d`) or a date (`2027-03-01`); gives the probability of being done by then.
        budget: What the run may cost, such as `500USD`.
        price: Price per accelerator-hour, such as `2.5USD/h`, instead of the listed price.
        sizes: With `days`: whether to give advice for 1,024 to 131,072 accelerators too.
        cluster: Refuse a plan that was not made for this cluster.
        software: The software profile that the plan was made with.
        name: Name of the run folder; by default from the plan file and the seed.
        runs: Folder in which the run folder of the first seed is written; None: nothing is written.
        progress: Called with what is done, how much of it, and how much there is in all.
    """
    numbers = {"steps": steps, "days": days, "seed": seed, "seeds": seeds, "jitter": jitter, "planes_lost": planes_lost}
    numbers |= {"nics_hit": nics_hit, "spares": spares, "failed_nodes": failed_nodes}
    _check_ranges({name: number for name, number in numbers.items() if number is not None})
    plan_file = Path(plan) if isinstance(plan, str | Path) else None
    chosen = read_plan(plan_file) if plan_file else plan_of(plan) if isinstance(plan, Forecast) else plan
    assert isinstance(chosen, Plan)
    runs = None if runs is None else Path(runs)
    if runs is not None and name:
        _check_folder(runs, name)
    _check_machine(chosen, cluster)
    stack = stack_of(chosen, software) if software else None
    conditions = Conditions(
        noise=None if noise else QUIET,
        jitter=jitter,
        fabric=Fabric(planes_lost=planes_lost, nics_hit=nics_hit, links_lost=links_lost, neighbour=neighbour, routing=routing),
        slow=_slow_ranks(slow_rank),
        storage_bytes_per_s=_storage(storage),
        stack=stack,
    )
    if nics_hit and not planes_lost:
        raise InputError(
            f"{argument('nics_hit')} is {nics_hit}, and {argument('planes_lost')} is 0: these NICs lose nothing",
            where=argument("nics_hit"),
            fix=f"say how many planes they lose: {argument('planes_lost', 1)}",
        )
    conditions.check(chosen)
    check_plan(chosen, stack or "")
    of_weeks = {"failures": failures, "checkpoint_every": checkpoint_every, "spares": spares is not None}
    of_weeks |= {"failed_nodes": failed_nodes, "finish_by": finish_by, "sizes": sizes}
    _check_length(chosen, steps, days, [option for option, value in of_weeks.items() if value], finish_by, budget)
    campaign = None
    if days is not None:
        interval_s = read_duration(checkpoint_every, argument("checkpoint_every")) if checkpoint_every else None
        campaign = campaign_of(chosen, failures_named(failures or "llama3"), interval_s, spares, failed_nodes)
    rate = read_rate(price) if price is not None else rate_of(chosen.cluster)
    asked = Simulation(
        plan=chosen,
        conditions=conditions,
        seed=seed,
        seeds=seeds,
        days=days,
        finish_by_s=_seconds_until(finish_by) if finish_by else None,
        rate=rate,
        budget=None if budget is None else _budget(chosen, steps, days, read_budget(budget), campaign, rate),
    )
    folder = _Folder(runs, name, plan_file)
    return _weeks(asked, campaign, folder, sizes, progress) if campaign else _steps(asked, steps or 0, folder, progress)


@dataclass(frozen=True, slots=True)
class _Folder:
    """Where the run of the first seed is written; nowhere if `runs` is None."""

    runs: Path | None
    name: str
    plan_file: Path | None

    def write(self, asked: Simulation, writer: Callable[[Path, str, Path, Paid], Path]) -> Path | None:
        """Write the folder and return its path. A plan that did not come from a file is written first."""
        if self.runs is None:
            return None
        paid = Paid(rate=asked.rate, budget=asked.budget)
        if self.plan_file is not None:
            return writer(self.runs, self._free_name(self.plan_file.stem, asked.seed), self.plan_file, paid)
        with TemporaryDirectory() as place:
            path = Path(place) / "plan.json"
            asked.plan.write(path)
            return writer(self.runs, self._free_name("plan", asked.seed), path, paid)

    def _free_name(self, stem: str, seed: int) -> str:
        """The name as given, or the first that is free."""
        if self.name or self.runs is None:
            return self.name
        base = f"{stem}-seed{seed}"
        name, number = base, 2
        while os.path.exists(self.runs / name):
            name, number = f"{base}-{number}", number + 1
        return name


def _within_s(asked: Simulation) -> float:
    """Seconds that the budget pays for, rounded to milliseconds as event times are."""
    return math.floor(asked.budget.seconds_left * 1e3) / 1e3 if asked.budget else math.inf


def _steps(asked: Simulation, steps: int, folder: _Folder, progress: Progress) -> Simulation:
    plan, conditions, within_s = asked.plan, asked.conditions, _within_s(asked)
    found: list[dict[str, float]] = []
    first: SimulatedRun | None = None
    interrupted = False
    planned = conditions.planned(plan)
    try:
        for number in range(asked.seeds):
            report = progress if asked.seeds == 1 else None
            run = run_plan(plan, conditions, steps, asked.seed + number, report, planned, within_s)
            first = first or run
            found.append(_figures(run))
            interrupted = not run.complete and not run.is_cut
            if interrupted:
                break
            progress("simulating runs", number + 1, asked.seeds)
    except KeyboardInterrupt:
        if first is None:
            raise
        interrupted = True
    assert first is not None
    run = first
    alike = None
    if conditions.slow and not interrupted:
        alike = run_plan(plan, replace(conditions, slow=()), steps, asked.seed, planned=planned, within_s=within_s)
    return replace(
        asked,
        run=run,
        over_seeds={key: OverSeeds.of([one[key] for one in found]) for key in found[0]} if len(found) > 1 else None,
        without_slow=alike,
        is_cut=run.is_cut,
        folder=folder.write(asked, lambda runs, name, plan_file, paid: write_run(run, runs, name, plan_file, paid)),
        interrupted=interrupted,
    )


def _figures(run: SimulatedRun) -> dict[str, float]:
    exposed = {f"mean_exposed_{axis}_s": value for axis, value in run.mean_exposed_s.items() if value > 0}
    return {
        "median_step_s": run.times.median_s,
        "mean_step_s": float(np.mean(run.times.steady_s)),
        "robust_std_pct": run.times.robust_std_pct,
        "simulated_s": run.simulated_s,
        **({} if run.time_to_train_s is None else {"time_to_train_s": run.time_to_train_s}),
        **exposed,
    }


def _weeks(asked: Simulation, campaign: Campaign, folder: _Folder, sizes: bool, progress: Progress) -> Simulation:
    plan, conditions = asked.plan, asked.conditions
    assert asked.days is not None
    horizon_s = min(asked.days * DAY, _within_s(asked))
    seen = outlook(plan, conditions, campaign, asked.seed, asked.seeds, horizon_s, progress)
    seen = replace(seen, usd_per_hour=float(asked.rate.usd_per_gpu_hour) if asked.rate else None)
    interrupted = not seen.weeks.complete
    ended: Finish | None = None
    table: list[Size] = []
    try:
        if not interrupted and (asked.finish_by_s is not None or asked.budget is not None):
            ended = finish(plan, seen, seen.step.run_spread, asked.seed, max(asked.seeds, FINISH_SEEDS), progress)
        if not interrupted and sizes:
            per_node = plan.cluster.accelerators_per_node
            for size in other_sizes(campaign.failures, per_node, asked.seed, asked.days, min(asked.seeds, MOST_SIZE_SEEDS)):
                table.append(size)
                progress("simulating other sizes", len(table), len(SIZES))
    except KeyboardInterrupt:
        interrupted = True
    sample = run_plan(plan, conditions, SAMPLED_STEPS + 1, asked.seed)
    is_cut = seen.weeks.complete and horizon_s < asked.days * DAY
    return replace(
        asked,
        outlook=seen,
        finish=ended,
        sizes=tuple(table),
        folder=folder.write(asked, lambda runs, name, plan_file, paid: write_weeks(seen, sample, runs, name, plan_file, paid, cut=is_cut)),
        is_cut=is_cut,
        interrupted=interrupted,
    )


def _check_ranges(numbers: Mapping[str, float]) -> None:
    for name, number in numbers.items():
        least, most = RANGES[name]
        if not least <= number <= most:
            raise InputError(f"{argument(name)} cannot be {number}", where=argument(name), fix=f"give a number from {least:,} to {most:,}")


def _check_folder(runs: Path, name: str) -> None:
    check_name(name)
    folder = runs / name
    if os.path.exists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError("the run's folder exists and is not empty", where=str(folder), fix=f"use another {argument('name')}")


def _check_length(plan: Plan, steps: int | None, days: float | None, of_weeks: Sequence[str], finish_by: str, budget: str | None) -> None:
    """Raise an InputError where options of weeks are given without days, or of steps with them."""
    if days is None:
        if of_weeks:
            options = ", ".join(map(argument, of_weeks))
            raise InputError(f"{options}: only valid with {argument('days')}", where=options, fix=f"add {argument('days', 54)}")
        return
    if not days > 0:
        raise InputError(f"{argument('days')} is {days:g}", where=argument("days"), fix="give more than 0")
    if steps is not None:
        raise InputError(f"{argument('steps')} is not valid with {argument('days')}", where=argument("steps"), fix="give one of them")
    if (finish_by or budget is not None) and plan.workload.num_steps() < 1:
        raise InputError(
            f"{plan.workload.name} states neither tokens nor a target, so it has no end",
            where=f"{argument('finish_by')}, {argument('budget')}",
            fix="leave these out, or make the plan with a workload that ends",
        )


def _budget(plan: Plan, steps: int | None, days: float | None, usd: Decimal, campaign: Campaign | None, rate: Rate | None) -> Budget:
    """The budget of the run, spare nodes included; an error if the predicted cost is higher.

    With `days`, the cost of these days is predicted, or that of the whole workload if it is less.
    """
    if rate is None:
        raise no_price(plan.cluster)
    num_spares = campaign.num_spares * campaign.accelerators_per_node if campaign else 0
    budget = Budget(usd=usd, rate=rate, num_gpus=plan.layout.num_ranks + num_spares)
    whole_s = predicted_s(plan, steps or plan.workload.num_steps())
    whole_s = whole_s.times(campaign.expected.wall_s(1.0)) if campaign else whole_s
    days_s = (days or math.inf) * DAY
    budget.check(whole_s if whole_s.value <= days_s else Spread(days_s, days_s, days_s))
    return budget


def _storage(gb_per_s: float | None) -> float:
    """Bytes per second that storage delivers; 0: as described."""
    if gb_per_s is not None and not (math.isfinite(gb_per_s) and gb_per_s > 0):
        raise InputError(f"{argument('storage')} is {gb_per_s:g} GB/s", where=argument("storage"), fix="give more than 0")
    return (gb_per_s or 0.0) * GB


def _slow_ranks(given: SlowRanks) -> tuple[Slow, ...]:
    if isinstance(given, Mapping):
        return tuple(Slow(rank=rank, factor=factor) for rank, factor in given.items())
    return tuple(_slow(text) for text in given)


def _slow(text: str) -> Slow:
    rank, _, factor = text.partition("=")
    try:
        return Slow(rank=int(rank), factor=float(factor))
    except ValueError:
        raise InputError(f"cannot read {text!r}", where=argument("slow_rank"), fix="write RANK=FACTOR, such as 100=1.3") from None


def _check_machine(plan: Plan, name: str) -> None:
    """Raise an InputError if the plan is for another cluster than the one that was named."""
    if not name:
        return
    machine = load_cluster(name)
    theirs, ours = (
        (c.accelerator.name, c.num_accelerators, tuple((t.name, t.num_accelerators, t.link) for t in c)) for c in (plan.cluster, machine)
    )
    if theirs != ours:
        raise InputError(
            f"the plan is for {plan.cluster.name} ({theirs[1]} {theirs[0]}), not for {machine.name} ({ours[1]} {ours[0]})",
            where=argument("cluster"),
            fix=f"make a plan with `meshwright plan {plan.model.name} {name} {plan.workload.name} --out FILE`",
        )


def _seconds_until(text: str) -> float:
    """Seconds of `90d`, or from now to a date."""
    if text[:1].isdigit() and text.count("-") >= 2:  # a time zone west of Greenwich has one more
        try:
            date = datetime.fromisoformat(text)
            seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
        except ValueError:
            raise InputError(f"cannot read a date in {text!r}", where=argument("finish_by"), fix="write 2027-03-01, or 90d") from None
        if seconds <= 0:
            raise InputError(f"{text} has passed", where=argument("finish_by"), fix="give a later date")
        return seconds
    return read_duration(text, argument("finish_by"))
