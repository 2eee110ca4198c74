"""What `meshwright simulate` was asked: a plan file and options -> the conditions it runs under."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from meshwright.describe.load import load_cluster
from meshwright.errors import InputError
from meshwright.ledger import Budget, Rate, no_price, predicted_s, rate_of, read_budget, read_rate
from meshwright.plan.objective import read_duration
from meshwright.plan.plan import Plan, read_plan, stack_of
from meshwright.predict.outcome import Spread
from meshwright.predict.software import Software
from meshwright.record.header import check_name
from meshwright.simulate.campaign import Campaign
from meshwright.simulate.fabric import Fabric
from meshwright.simulate.failures import failures
from meshwright.simulate.job import check_plan
from meshwright.simulate.noise import QUIET, fitted_noise
from meshwright.simulate.outlook import campaign_of
from meshwright.simulate.run import Conditions, Paid
from meshwright.simulate.step import Slow
from meshwright.units import DAY, GB


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The options, as they were given."""

    steps: int | None = None
    seed: int = 0
    seeds: int = 1
    name: str = ""
    runs: Path = Path("runs")
    cluster: str = ""
    software: str = ""
    jitter: float = 1.0
    quiet: bool = False
    slow_ranks: tuple[str, ...] = ()
    planes_lost: int = 0
    nics_hit: int = 0
    links_lost: float = 0.0
    neighbour: float = 0.0
    routing: str = ""
    storage_gb_per_s: float | None = None
    days: float | None = None
    failures: str = ""  # llama3, where it is not given
    checkpoint_every: str = ""
    spares: int | None = None
    failed_nodes: int = 0
    finish_by: str = ""
    budget: str | None = None
    price: str | None = None
    sizes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A plan, what its machine is like, and what is wanted to know."""

    plan: Plan
    plan_file: Path
    wishes: Wishes
    conditions: Conditions
    campaign: Campaign | None  # of weeks; None: of steps
    finish_by_s: float | None
    rate: Rate | None  # what an accelerator-hour costs
    budget: Budget | None

    @property
    def name(self) -> str:
        """Of the run's folder: as given, or the first that is free."""
        if self.wishes.name:
            return self.wishes.name
        base = f"{self.plan_file.stem}-seed{self.wishes.seed}"
        name, number = base, 2
        while (self.wishes.runs / name).exists():
            name, number = f"{base}-{number}", number + 1
        return name

    @property
    def paid(self) -> Paid:
        """What the run is paid with, for its folder."""
        return Paid(rate=self.rate, budget=self.budget)

    @property
    def within_s(self) -> float:
        """Seconds that the budget pays for, to the millisecond that events tell."""
        return math.floor(self.budget.seconds_left * 1e3) / 1e3 if self.budget else math.inf


def asked(plan_file: Path, wishes: Wishes) -> Ask:
    """The question; refuses what cannot be before anything is simulated."""
    if wishes.name:
        check_name(wishes.name)
        folder = wishes.runs / wishes.name
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError("the run's folder exists and is not empty", where=str(folder), fix="use another --name")
    plan = read_plan(plan_file)
    stack = stack_of(plan, wishes.software) if wishes.software else None
    _check_machine(plan, wishes.cluster)
    conditions = _conditions(wishes, stack)
    conditions.check(plan)
    check_plan(plan, stack or "")
    campaign = _campaign(plan, wishes)
    finish_by_s = _seconds_until(wishes.finish_by) if wishes.finish_by else None
    rate = read_rate(wishes.price) if wishes.price is not None else rate_of(plan.cluster)
    return Ask(
        plan=plan,
        plan_file=plan_file,
        wishes=wishes,
        conditions=conditions,
        campaign=campaign,
        finish_by_s=finish_by_s,
        rate=rate,
        budget=None if wishes.budget is None else _budget(plan, wishes, read_budget(wishes.budget), campaign, rate),
    )


def _budget(plan: Plan, wishes: Wishes, usd: Decimal, campaign: Campaign | None, rate: Rate | None) -> Budget:
    """What the run may cost, spares included; an error where what is asked for costs more by prediction.

    Of weeks that is so many days, or the workload to its end, whichever is less.
    """
    if rate is None:
        raise no_price(plan.cluster)
    num_spares = campaign.num_spares * campaign.accelerators_per_node if campaign else 0
    budget = Budget(usd=usd, rate=rate, num_gpus=plan.layout.num_ranks + num_spares)
    takes_s = predicted_s(plan, wishes.steps or plan.workload.num_steps())
    days_s = (wishes.days or math.inf) * DAY
    budget.check(takes_s if takes_s.value <= days_s else Spread(days_s, days_s, days_s))
    return budget


def _campaign(plan: Plan, wishes: Wishes) -> Campaign | None:
    """What runs for weeks; None where steps are asked for. An option of the one is an error with the other."""
    if wishes.days is None:
        of_weeks = {
            "--failures": wishes.failures,
            "--checkpoint-every": wishes.checkpoint_every,
            "--spares": wishes.spares is not None,
            "--failed-nodes": wishes.failed_nodes,
            "--finish-by": wishes.finish_by,
            "--sizes": wishes.sizes,
        }
        if given := [name for name, value in of_weeks.items() if value]:
            raise InputError("this is asked of weeks", where=", ".join(given), fix="add --days 54")
        return None
    if not wishes.days > 0:
        raise InputError("no days", where="--days", fix="give more than 0")
    if wishes.steps is not None:
        raise InputError("weeks are as long as their days, not so many steps", where="--steps", fix="give --days or --steps, not both")
    if (wishes.finish_by or wishes.budget is not None) and plan.workload.num_steps() < 1:
        raise InputError(
            f"{plan.workload.name} states neither tokens nor a target, so it has no end",
            where="--finish-by, --budget",
            fix="leave these out, or make the plan with a workload that ends",
        )
    interval_s = _duration_s(wishes.checkpoint_every, "--checkpoint-every", "write 10min, 300s or 1h") if wishes.checkpoint_every else None
    return campaign_of(plan, failures(wishes.failures or "llama3"), interval_s, wishes.spares, wishes.failed_nodes)


def _conditions(wishes: Wishes, stack: Software | None) -> Conditions:
    if wishes.storage_gb_per_s is not None and not (math.isfinite(wishes.storage_gb_per_s) and wishes.storage_gb_per_s > 0):
        raise InputError(f"storage of {wishes.storage_gb_per_s:g} GB/s", where="--storage", fix="give more than 0")
    if wishes.nics_hit and not wishes.planes_lost:
        raise InputError(f"{wishes.nics_hit} NICs are hit and lose no plane", where="--nics-hit", fix="say how many with --planes-lost 1")
    return Conditions(
        noise=QUIET if wishes.quiet else fitted_noise().scaled(wishes.jitter),
        fabric=Fabric(
            planes_lost=wishes.planes_lost,
            nics_hit=wishes.nics_hit,
            links_lost=wishes.links_lost,
            neighbour=wishes.neighbour,
            routing=wishes.routing,
        ),
        slow=tuple(_slow(text) for text in wishes.slow_ranks),
        storage_bytes_per_s=(wishes.storage_gb_per_s or 0.0) * GB,
        stack=stack,
    )


def _slow(text: str) -> Slow:
    rank, equals, factor = text.partition("=")
    try:
        return Slow(rank=int(rank), factor=float(factor) if equals else 1.3)
    except ValueError:
        raise InputError(f"cannot read {text!r}", where="--slow-rank", fix="write RANK=FACTOR, such as 100=1.3") from None


def _check_machine(plan: Plan, name: str) -> None:
    """Refuse a plan for another machine than the one that was named."""
    if not name:
        return
    machine = load_cluster(name)
    theirs, ours = (
        (c.accelerator.name, c.num_accelerators, tuple((t.name, t.num_accelerators, t.link) for t in c)) for c in (plan.cluster, machine)
    )
    if theirs != ours:
        raise InputError(
            f"the plan is for {plan.cluster.name} ({theirs[1]} {theirs[0]}), not for {machine.name} ({ours[1]} {ours[0]})",
            where="--cluster",
            fix=f"make a plan with `meshwright plan {plan.model.name} {name} {plan.workload.name} --out FILE`",
        )


def _seconds_until(text: str) -> float:
    """Seconds of `90d`, or from now to a date."""
    if text[:1].isdigit() and text.count("-") == 2:
        try:
            date = datetime.fromisoformat(text)
            seconds = ((date if date.tzinfo else date.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
        except ValueError:
            raise InputError(f"cannot read a date in {text!r}", where="--finish-by", fix="write 2027-03-01, or 90d") from None
        if seconds <= 0:
            raise InputError(f"{text} has passed", where="--finish-by", fix="give a later date")
        return seconds
    return _duration_s(text, "--finish-by", "write 90d, or 2027-03-01")


def _duration_s(text: str, where: str, fix: str) -> float:
    try:
        return read_duration(text)
    except InputError as error:
        raise InputError(error.what.replace("a deadline of", "a time of"), where=where, fix=fix) from None
