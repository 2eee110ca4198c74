"""Chooses the number of accelerators: searches machines of several sizes and chooses the best; also the front of time and cost.

Sizes are 1, 3, 5 or 7 times powers of two, of whole domains or below one domain. A larger limit only adds sizes, so that allowing more
accelerators never gives a worse plan. A domain may leave spares (64 of 72 in use), or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.describe.cluster import Cluster
from meshwright.describe.whatif import using
from meshwright.errors import FitError, InputError, MeshwrightError, argument
from meshwright.job import Job
from meshwright.plan.candidates import Fixed
from meshwright.plan.features import Features
from meshwright.plan.measure import STEP, Measure, run_energy, run_time
from meshwright.plan.noise import plan_noise
from meshwright.plan.objective import Aim, Floor, floor
from meshwright.plan.search import Found, check_kept, least_of, search
from meshwright.plan.stack import ANY
from meshwright.plan.stack.rule import Stack
from meshwright.predict.footprint import RESERVE_BYTES, reserve_for
from meshwright.predict.forecast import Forecast, forecast
from meshwright.predict.outcome import Terms
from meshwright.units import GIB, gib, si

ODD = (1, 3, 5, 7)
ENERGY = ("energy", "carbon")  # objectives that go by the energy of the run
Progress = Callable[[str, int, int], None]  # what is searched, rows done and in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A planning question, apart from the size of the machine."""

    job: Job
    features: Features | None = None  # None: as software of this kind usually is
    stack: Stack = ANY  # the stack that must run the plan
    fixed: Fixed = field(default_factory=Fixed)
    terms: Terms = field(default_factory=Terms)
    aim: Aim = field(default_factory=Aim)
    keep: int = 5
    reserve_bytes: float = RESERVE_BYTES
    sized: bool = False  # whether the number of accelerators was set, so that no other is searched

    def __post_init__(self) -> None:
        check_kept(self.keep)

    def on(self, cluster: Cluster) -> Ask:
        """The same question for another machine."""
        return replace(self, job=self.job.on(cluster))

    def without_changes(self, job: Job) -> Ask:
        """The same question for the job as described, without changes."""
        return replace(self, job=job, sized=False)


def check_sizes(gpus: int | None, max_gpus: int | None, assignments: Iterable[str]) -> None:
    """Raise an InputError if the number of accelerators is given more than once."""
    is_set = any(text.partition("=")[0].strip() == "gpus" for text in assignments)
    if sum((gpus is not None, max_gpus is not None, is_set)) > 1:
        ways = (argument("gpus"), argument("max_gpus"), argument("changes", "gpus=..."))
        raise InputError("the number of accelerators is given twice", where=ways[0], fix=f"keep one of {ways[0]}, {ways[1]} and {ways[2]}")


def reserve_with(headroom_gib: float, job: Job) -> float:
    """Bytes to keep free on every accelerator: the usual reserve and so many GiB more."""
    chip = job.cluster.accelerator
    if reserve_for(chip) + headroom_gib * GIB >= chip.room_bytes:
        raise InputError(
            f"a headroom of {headroom_gib:g} GiB leaves nothing of {chip.name}'s {gib(chip.room_bytes)}",
            where=argument("headroom"),
            fix=f"give less than {(chip.room_bytes - reserve_for(chip)) / GIB:.0f} GiB",
        )
    return reserve_for(chip) + headroom_gib * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """One machine that was searched: its best plans, and statistics of the search."""

    cluster: Cluster
    plans: tuple[Forecast, ...]  # the best first, by the aim
    found: Found

    @property
    def best(self) -> Forecast:
        return self.plans[0]


def searched(ask: Ask, progress: Progress = lambda what, done, total: None) -> Searched:
    """The best plans on one machine; if a deadline or budget is given and can be met, only plans that meet it."""
    aim = ask.aim
    by_energy = aim.objective in ENERGY
    limited = aim.deadline_s is not None or aim.budget_usd is not None
    if by_energy and not limited:
        return _searched(ask, run_energy(ask.job, ideal=ask.terms.ideal), progress)
    fastest = _searched(ask, STEP if aim.objective == "time" else run_time(ask.job), progress)
    if not aim.allows(fastest.best):
        return fastest
    if by_energy:
        most_s = aim.most_s(fastest.best)
        return _searched(ask, run_energy(ask.job, most_s, ideal=ask.terms.ideal), progress)
    return replace(fastest, plans=tuple(priced for priced in fastest.plans if aim.allows(priced)))


def _searched(ask: Ask, measure: Measure, progress: Progress) -> Searched:
    """The best plans on one machine by a measure."""
    name = f"{ask.job.num_accelerators:,} accelerators"
    found = search(
        ask.job,
        features=ask.features,
        fixed=ask.fixed,
        keep=ask.keep,
        reserve_bytes=ask.reserve_bytes,
        measure=measure,
        stack=ask.stack,
        noise=plan_noise(),
        progress=lambda done, total: progress(name, done, total),
    )
    plans = [forecast(ask.job, layout, terms=ask.terms) for layout in found.layouts]
    return Searched(cluster=ask.job.cluster, plans=tuple(plans), found=found)


def ladder(limit: int) -> list[int]:
    """1, 3, 5 and 7 times every power of two, up to a limit."""
    return sorted(odd << power for odd in ODD for power in range(max(limit, 1).bit_length()) if odd << power <= limit)


def used_per_domain(cluster: Cluster) -> list[int]:
    """How many accelerators of a domain to try: as described, all that are installed, and the largest power of two."""
    inner = cluster.tiers[0]
    return sorted({inner.num_accelerators, inner.num_installed, 1 << (inner.num_installed.bit_length() - 1)})


def machines_up_to(cluster: Cluster, most: int) -> list[Cluster]:
    """Machines like this one of up to `most` accelerators, the largest first: parts of a domain, and whole domains."""
    if len(cluster.tiers) == 1:
        sizes = {*ladder(min(most, cluster.num_installed)), *(n for n in [cluster.num_accelerators] if n <= most)}
        return [cluster.resized(size) for size in sorted(sizes, reverse=True)]
    found = {}
    for used in used_per_domain(cluster):
        machine = using(cluster, 0, used)
        for size in (used * count for count in ladder(most // used)):
            if machine.can_have(size):
                found[(size, used)] = machine.resized(size)
    smallest = min(used_per_domain(cluster))
    for size in ladder(min(most, smallest - 1)):
        found[(size, size)] = cluster.resized(size)
    if cluster.num_accelerators <= most:
        found[(cluster.num_accelerators, cluster.tiers[0].num_accelerators)] = cluster
    return [found[key] for key in sorted(found, reverse=True)]


@dataclass(slots=True)
class Survey:
    """Machines searched so far."""

    searched: list[Searched] = field(default_factory=list)
    num_bounded: int = 0  # machines that were skipped because their lower bound is too high
    misses: list[str] = field(default_factory=list)  # why machines have no plan

    def front(self) -> list[Searched]:
        """Machines that no other beats in both time and cost, the fastest first; without a price, the fastest of each size."""
        points = sorted(self.searched, key=lambda point: (_time_s(point), _cost_usd(point)))
        kept: list[Searched] = []
        for point in points:
            if not kept or _cost_usd(point) < _cost_usd(kept[-1]):
                kept.append(point)
        return kept


def _time_s(point: Searched) -> float:
    time_s = point.best.time_to_train
    return time_s.value if time_s else point.best.step_s


def _cost_usd(point: Searched) -> float:
    cost = point.best.cost
    return cost.value if cost else float(point.cluster.num_accelerators * _time_s(point))


def survey(ask: Ask, machines: Sequence[Cluster], *, front: bool, progress: Progress = lambda what, done, total: None) -> Survey:
    """Search machines of several sizes, except those whose lower bound shows that they cannot win.

    For the front, machines are skipped that a searched machine beats in both time and cost. Otherwise machines are skipped that cannot meet
    deadline and budget, or that a machine which meets them beats in the objective.
    """
    if len(machines) == 1:
        return Survey([searched(ask.on(machines[0]), progress)])
    result = Survey()
    for machine, least in _most_promising_first(ask, machines):
        low = least(_usd_per_hour(result))
        if any(_beaten(ask.aim, low, point, front) for point in result.searched):
            result.num_bounded += 1
            continue
        try:
            result.searched.append(searched(ask.on(machine), progress))
        except FitError as error:
            result.misses.append(error.what)
    if not result.searched:
        raise _none(ask, machines, result)
    return result


def _most_promising_first(ask: Ask, machines: Sequence[Cluster]) -> list[tuple[Cluster, Callable[[float], Floor]]]:
    """Machines that allow a layout, each with its lower bound at a price, the most promising first."""
    floors = [(machine, _floor(ask, machine)) for machine in machines]

    def rank(pair: tuple[Cluster, Callable[[float], Floor]]) -> tuple[bool, float]:
        low = pair[1](1.0)
        return low.time_s > (ask.aim.deadline_s or np.inf), low.of(ask.aim.objective)

    return sorted((pair for pair in floors if np.isfinite(pair[1](1.0).time_s)), key=rank)


def _floor(ask: Ask, machine: Cluster) -> Callable[[float], Floor]:
    """A lower bound for all runs on a machine, at so many dollars per accelerator-hour."""
    job = ask.job.on(machine)

    def least(measure: Measure) -> float:
        return least_of(job, ask.features, ask.fixed, measure, ask.stack)

    step_s = least(STEP)
    node_j = least(run_energy(job, ideal=ask.terms.ideal)) if ask.aim.objective in ENERGY else 0.0
    return lambda usd_per_hour: floor(machine, job.workload, step_s, usd_per_hour, node_j, ideal=ask.terms.ideal)


def _usd_per_hour(result: Survey) -> float:
    """The price of an accelerator-hour, from a machine that was searched; 0 if none shows it."""
    offer = result.searched[0].best.outcome.offer if result.searched else None
    return offer.price.usd_per_accelerator_hour if offer else 0.0


def _beaten(aim: Aim, low: Floor, point: Searched, front: bool) -> bool:
    """Whether a machine that was searched is at least as good as a lower bound."""
    if front:
        return _time_s(point) <= low.time_s and _cost_usd(point) <= low.cost_usd
    least_miss = low.miss(aim)
    if least_miss > 0:  # it cannot keep what was asked, so it counts only where nothing does and it comes nearer
        return least_miss >= aim.missed_by(point.best)
    if not aim.allows(point.best):
        return False
    whole = point.best.outcome
    carbon = whole.carbon_kg.value / whole.energy_j.value if whole.carbon_kg and whole.energy_j else 1.0
    return aim.value(point.best) <= low.of(aim.objective, carbon if aim.objective == "carbon" else 0.0)


def chosen(ask: Ask, result: Survey) -> Searched:
    """The best machine that meets deadline and budget; of equal ones the smallest."""
    able = [point for point in result.searched if ask.aim.allows(point.best)]
    if able:
        return min(able, key=lambda point: (ask.aim.value(point.best), point.cluster.num_accelerators))
    nearest = min(result.searched, key=lambda point: ask.aim.missed_by(point.best))
    wanted = ask.aim.missed(nearest.best)
    raise FitError(
        f"no plan meets the limits: the nearest, {nearest.cluster.num_accelerators:,} accelerators with {nearest.best.layout}, is {wanted}",
        where=f"{argument('deadline_s')}, {argument('budget_usd')}",
        fix=f"allow more time, money or accelerators ({argument('max_gpus')}), or another price ({argument('price_kind')})",
    )


def _none(ask: Ask, machines: Sequence[Cluster], result: Survey) -> MeshwrightError:
    if result.misses:
        return FitError(
            f"no layout fits any of {len(result.misses)} sizes; of the largest: {result.misses[0]}",
            where="plan",
            fix="use more accelerators, a smaller batch or sequence, a lower precision, or open recompute and ZeRO 3",
        )
    most = max(machine.num_accelerators for machine in machines)
    return InputError(
        f"no degrees divide {ask.job.model.name} and a batch of {ask.job.workload.global_batch:,} "
        f"on any size up to {si(most, '')} accelerators",
        where="plan",
        fix="free a fixed degree, or choose a batch with more divisors",
    )
