"""The answer of `meshwright plan`: machines searched, the best plans, why, and what changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.cli.plan_question import Wishes
from meshwright.describe.cluster import Cluster, beyond_note
from meshwright.errors import InputError, MeshwrightError
from meshwright.plan.explain import Explanation, explain
from meshwright.plan.make import PricedPlan
from meshwright.plan.plan import Plan
from meshwright.plan.rankmap import RankMap, rank_map
from meshwright.plan.sizes import Ask, Progress, Searched, Survey, chosen, machines_of, machines_up_to, survey
from meshwright.predict.placement import overlap_note


@dataclass(frozen=True, slots=True, kw_only=True)
class Spares:
    """Accelerators that stand in the domains in use and that the plan leaves idle."""

    domain: str
    per_domain: int
    num_installed: int
    num_domains: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.per_domain * self.num_domains


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """All there is to print."""

    ask: Ask
    best: Searched
    survey: Survey
    search_s: float
    explanation: Explanation | None
    front: tuple[Searched, ...] = ()  # of time against cost, where it was asked for
    before: PricedPlan | None = None  # the best plan without what --set changed

    @property
    def plans(self) -> Sequence[PricedPlan]:
        """The best first."""
        return self.best.plans

    @property
    def plan(self) -> Plan:
        """The best."""
        return self.best.best.plan

    @property
    def ranks(self) -> RankMap:
        """Where the ranks of the best stand."""
        return rank_map(self.plan.layout, self.plan.cluster)

    @property
    def spares(self) -> Spares:
        """What the best leaves idle."""
        inner = self.plan.cluster.tiers[0]
        return Spares(
            domain=inner.name,
            per_domain=inner.num_installed - inner.num_accelerators,
            num_installed=inner.num_installed,
            num_domains=self.plan.cluster.num_accelerators // inner.num_accelerators,
        )

    @property
    def size_notes(self) -> tuple[str, ...]:
        """What a reader should know of where plans stand: more accelerators than described, tensor groups beyond a domain."""
        largest = max([self.plan.cluster, *(point.cluster for point in self.front)], key=lambda cluster: cluster.num_accelerators)
        found = beyond_note(self.ask.described or self.ask.cluster, largest), overlap_note(self.plan.layout, self.plan.cluster)
        return tuple(note for note in found if note)

    def why(self, plan: Plan) -> Explanation:
        """A plan explained."""
        return explain(plan.model, plan.cluster, plan.workload, plan.layout, self.ask.stack)


def answered(ask: Ask, wishes: Wishes, progress: Progress, *, unchanged: Ask | None, explained: bool) -> Answer:
    """The best plans; with `unchanged`, what they would be without --set."""
    result = survey(ask, machines_for(ask, wishes), front=wishes.pareto, progress=progress)
    best = chosen(ask, result)
    before = _before(unchanged, wishes, progress) if unchanged else None
    plan = best.best.plan
    return Answer(
        ask=ask,
        best=best,
        survey=result,
        search_s=sum(point.found.search_s for point in result.searched),
        explanation=explain(plan.model, plan.cluster, plan.workload, plan.layout, ask.stack) if explained else None,
        front=tuple(result.front()) if wishes.pareto else (),
        before=before,
    )


def _before(unchanged: Ask, wishes: Wishes, progress: Progress) -> PricedPlan | None:
    """The best plan without what was changed; None where there is none (the change is what makes it fit)."""
    try:
        return chosen(unchanged, survey(unchanged, machines_for(unchanged, replace(wishes, sets=())), front=False, progress=progress)).best
    except MeshwrightError:
        return None


def machines_for(ask: Ask, wishes: Wishes) -> list[Cluster]:
    """Machines to search: the one described, those of a given size, or all up to a limit where size is part of the question."""
    if wishes.gpus is not None:
        return machines_of(ask.cluster, wishes.gpus)
    sized = any(text.split("=")[0].strip() == "gpus" for text in wishes.sets)
    if wishes.max_gpus is None and (sized or not (ask.aim.compares_sizes or wishes.pareto)):
        return [ask.cluster]
    found = machines_up_to(ask.cluster, wishes.max_gpus or ask.cluster.num_accelerators)
    if not found:
        raise InputError(f"no machine has at most {wishes.max_gpus} accelerators", where="--max-gpus", fix="allow at least 1")
    return found
