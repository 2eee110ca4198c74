"""The result of `meshwright plan`: the clusters that were searched, the best plans, and the best plan without the changes of `--set`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.arguments import typed
from meshwright.describe.cluster import Cluster
from meshwright.errors import InputError, MeshwrightError, argument
from meshwright.job import Job
from meshwright.plan.candidates import fixed_by
from meshwright.plan.objective import Aim
from meshwright.plan.plan import Plan, plan_of
from meshwright.plan.rankmap import RankMap, rank_map
from meshwright.plan.sizes import Ask, Progress, Searched, Survey, check_sizes, chosen, machines_up_to, reserve_with, survey
from meshwright.plan.stack_choice import chosen_stack
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Accelerators in the domains in use that the plan leaves idle."""

    domain: str
    per_domain: int
    num_installed: int
    num_domains: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.per_domain * self.num_domains


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The best plan with and without the changes of `--set`; compared by time per token if the steps have different numbers of tokens."""

    before: Forecast
    after: Forecast

    @property
    def same_tokens(self) -> bool:
        """Whether both steps have the same number of tokens."""
        return self.before.job.workload.tokens_per_step == self.after.job.workload.tokens_per_step

    @property
    def longer_pct(self) -> float:
        """By how many per cent a step (or a token, if the steps differ in size) takes longer with the changes; negative: shorter."""
        if self.same_tokens:
            return 100 * (self.after.step_s / self.before.step_s - 1)
        return 100 * (self.before.tokens_per_s / self.after.tokens_per_s - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The best plans of a job, and how they were found: what `job.plan(...)` returns."""

    ask: Ask
    best: Searched
    survey: Survey
    front: tuple[Searched, ...] = ()  # the Pareto front of time and cost, if it was asked for
    before: Forecast | None = None  # the best plan without the changes of `--set`

    @property
    def forecasts(self) -> Sequence[Forecast]:
        """The forecasts of the plans, the best first."""
        return self.best.plans

    @property
    def forecast(self) -> Forecast:
        """The forecast of the best plan."""
        return self.best.best

    @property
    def plan(self) -> Plan:
        """The best plan, which can be written to a file."""
        return plan_of(self.forecast)

    @property
    def search_s(self) -> float:
        """Seconds that the searches took."""
        return sum(point.found.search_s for point in self.survey.searched)

    @property
    def ranks(self) -> RankMap:
        """The place of every rank of the best plan."""
        return rank_map(self.forecast.layout, self.forecast.job.cluster)

    @property
    def comparison(self) -> Comparison | None:
        """The best plan compared with the best without the changes of `--set`; None if nothing was changed."""
        return Comparison(before=self.before, after=self.forecast) if self.before else None

    @property
    def spares(self) -> Spares:
        """The accelerators that the best plan leaves idle."""
        cluster = self.forecast.job.cluster
        inner = cluster.tiers[0]
        return Spares(
            domain=inner.name,
            per_domain=inner.num_installed - inner.num_accelerators,
            num_installed=inner.num_installed,
            num_domains=cluster.num_accelerators // inner.num_accelerators,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the best plan and the points of the front, each once."""
        largest = max((point.best for point in self.front), key=lambda one: one.job.num_accelerators, default=self.forecast)
        return tuple(dict.fromkeys((*self.forecast.notes, *largest.notes)))

    def __repr__(self) -> str:
        return f"Planned({self})"

    def __str__(self) -> str:
        return f"best of {self.best.found.num_layouts:,} layouts by {self.ask.aim.objective}: {self.forecast}"

    def to_json(self) -> dict[str, Any]:
        """What `meshwright plan --json` prints."""
        from meshwright.say.plan import plan_document

        return plan_document(self).to_json()

    def _repr_html_(self) -> str:
        from meshwright.say.html import fragment
        from meshwright.say.plan import plan_document

        return fragment(plan_document(self))


def planned(
    ask: Ask,
    *,
    gpus: int | None = None,
    max_gpus: int | None = None,
    pareto: bool = False,
    unchanged: Ask | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Planned:
    """The best plans on the cluster, on `gpus` of its accelerators, or on any number up to `max_gpus`.

    `unchanged` is the same question without the changes of `--set`, for comparison.
    """
    result = survey(ask, _machines(ask, gpus, max_gpus, pareto), front=pareto, progress=progress)
    return Planned(
        ask=ask,
        best=chosen(ask, result),
        survey=result,
        front=tuple(result.front()) if pareto else (),
        before=_best_of(unchanged, gpus, max_gpus, progress) if unchanged else None,
    )


@typed
def plan_job(
    job: Job,
    *,
    keep: int = 5,
    layout: str = "",
    stack: str = "",
    gpus: int | None = None,
    max_gpus: int | None = None,
    objective: str = "time",
    deadline_s: float | None = None,
    budget_usd: float | None = None,
    terms: Terms | None = None,
    pareto: bool = False,
    ideal: bool = False,
) -> Planned:
    """The best plans of a job, as `meshwright plan` searches them.

    `layout` fixes some of the choices, and `stack` names the stack that must be able to run the plan. `objective` is what to minimise:
    time, cost, energy, carbon or tokens-per-dollar. `deadline_s` (seconds) and `budget_usd` (US dollars) limit the whole run. With
    `max_gpus` the number of accelerators is chosen too, and `pareto` adds time against cost for several numbers. `ideal` leaves out
    interruptions, restarts, checkpoints and spare nodes, like `Terms(ideal=True)`.
    """
    check_sizes(gpus, max_gpus, ())
    fixed = fixed_by(layout)
    job, chosen = chosen_stack(job, stack, fixed)
    ask = Ask(
        job=job,
        stack=chosen,
        fixed=fixed,
        terms=replace(terms or Terms(), ideal=True) if ideal else terms or Terms(),
        aim=Aim(objective=objective, deadline_s=deadline_s, budget_usd=budget_usd),
        keep=keep,
        reserve_bytes=reserve_with(0.0, job),
        sized=job.num_accelerators != job.described.num_accelerators,
    )
    return planned(ask, gpus=gpus, max_gpus=max_gpus, pareto=pareto)


def _best_of(ask: Ask, gpus: int | None, max_gpus: int | None, progress: Progress) -> Forecast | None:
    """The best plan of another question; None if it has none (for example, if only the change of `--set` makes a layout fit)."""
    try:
        return chosen(ask, survey(ask, _machines(ask, gpus, max_gpus, False), front=False, progress=progress)).best
    except MeshwrightError:
        return None


def _machines(ask: Ask, gpus: int | None, max_gpus: int | None, pareto: bool) -> list[Cluster]:
    """Clusters to search: the one described, the one of a given size, or all sizes up to a limit if the size is to be chosen."""
    cluster = ask.job.cluster
    if gpus is not None:
        return [cluster.resized(gpus)]  # as `Job(gpus=...)` and `meshwright predict` take it
    if max_gpus is None and (ask.sized or not (ask.aim.compares_sizes or pareto)):
        return [cluster]
    found = machines_up_to(cluster, cluster.num_accelerators if max_gpus is None else max_gpus)
    if not found:
        raise InputError(f"no machine has at most {max_gpus} accelerators", where=argument("max_gpus"), fix="allow at least 1")
    return found
