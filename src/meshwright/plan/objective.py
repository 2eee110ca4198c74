"""What a plan is chosen for: an objective, and a deadline or a budget.

Every objective is a number of the whole run, and lower is better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.describe.cluster import Cluster
from meshwright.describe.workload import Workload
from meshwright.errors import InputError, argument, nearest
from meshwright.predict.forecast import Forecast
from meshwright.predict.goodput import LONG_S
from meshwright.predict.outcome import Spread, expected_in
from meshwright.units import DAY, HOUR, MINUTE, seconds, usd

OBJECTIVES = ("time", "cost", "energy", "carbon", "tokens-per-dollar")
_UNITS = {"s": 1.0, "min": MINUTE, "h": HOUR, "d": DAY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A deadline or a budget, and how much of it a plan uses."""

    what: str  # "deadline", "budget"
    allowed: float  # seconds or dollars, as the rest
    predicted: float  # the value that is compared with the limit
    reaches: float  # the far end of the interval; infinite if only the lower end is known

    @property
    def over(self) -> float:
        """By how much the limit is exceeded; negative within the limit."""
        return self.predicted - self.allowed

    @property
    def is_sure(self) -> bool:
        """Whether the whole interval is within the limit."""
        return self.reaches <= self.allowed

    @property
    def words(self) -> str:
        """How far the plan is within the limit, or by how much it exceeds it."""
        shown = seconds if self.what == "deadline" else usd
        if self.over > 0:
            return f"{shown(self.over)} {'past the deadline' if self.what == 'deadline' else 'over the budget'}"
        if math.isinf(self.reaches):
            return f"{shown(self.allowed)} holds at {shown(self.predicted)}, and has no upper end: the samples to the target are not known"
        far = "even at the far end of the interval," if self.is_sure else "the interval reaches"
        return f"{shown(self.allowed)} holds at {shown(self.predicted)}; {far} {shown(self.reaches)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What to minimize, and the limits."""

    objective: str = "time"
    deadline_s: float | None = None
    budget_usd: float | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InputError(f"no objective named {self.objective!r}", where=argument("objective"), fix=nearest(self.objective, OBJECTIVES))

    @property
    def compares_sizes(self) -> bool:
        """Whether the result depends on the number of accelerators."""
        return self.objective != "time" or self.deadline_s is not None or self.budget_usd is not None

    def value(self, plan: Forecast) -> float:
        """The objective's value for the run; lower is better."""
        whole, name = plan.outcome, self.objective
        if name == "time":
            return whole.time_to_train_s.value if whole.time_to_train_s else plan.step_s
        if name in ("cost", "tokens-per-dollar"):  # the run's tokens are given, so the most tokens per dollar is the least cost
            return _known(plan, plan.cost, "cost").value
        return _known(plan, whole.energy_j if name == "energy" else whole.carbon_kg, "energy").value

    def limits(self, plan: Forecast) -> list[Limit]:
        """The limits that were given, and the predicted need of a plan."""
        found = []
        if self.deadline_s is not None:
            found.append(_limit("deadline", self.deadline_s, _known(plan, plan.time_to_train, "time_to_train")))
        if self.budget_usd is not None:
            cost = _known(plan, plan.cost, "cost")
            found.append(_limit("budget", self.budget_usd, cost))
        return found

    def allows(self, plan: Forecast) -> bool:
        """Whether a plan keeps the deadline and the budget."""
        return all(limit.over <= 0 for limit in self.limits(plan))

    def most_s(self, plan: Forecast) -> float:
        """Seconds that a run may be predicted to take on a plan's machine within the deadline and the budget."""
        time_s, limits = plan.time_to_train, self.limits(plan)
        if time_s is None:
            return math.inf
        most_s = min((time_s.value * limit.allowed / limit.predicted for limit in limits), default=math.inf)
        # A run of more than a day pays for spare nodes too: what the budget of a shorter one allows is known up to a day only.
        known_s = LONG_S if plan.outcome.interruptions is None and not plan.terms.ideal and self.budget_usd is not None else math.inf
        return min(most_s, max(known_s, time_s.value))

    def miss(self, late_s: float, over_usd: float) -> float:
        """By how much a run exceeds the limits, as a fraction of the limit; 0 within them."""
        late = max(late_s, 0.0) / self.deadline_s if self.deadline_s else 0.0
        return late + max(over_usd, 0.0) / (self.budget_usd or 1.0)

    def missed_by(self, plan: Forecast) -> float:
        """How far a plan misses what was asked, in parts of what was allowed."""
        over = {limit.what: limit.over for limit in self.limits(plan)}
        return self.miss(over.get("deadline", 0.0), over.get("budget", 0.0))

    def missed(self, plan: Forecast) -> str:
        """By how much a plan misses, in words."""
        return " and ".join(limit.words for limit in self.limits(plan) if limit.over > 0)


def _limit(what: str, allowed: float, needed: Spread) -> Limit:
    return Limit(what=what, allowed=allowed, predicted=needed.value, reaches=needed.high)


def _known(plan: Forecast, spread: Spread | None, key: str) -> Spread:
    """The quantity; an error with the reason where it is unknown."""
    if spread is not None:
        return spread
    has_length = plan.time_to_train is not None
    fix = (
        f"choose another objective, or name {argument('provider')} and {argument('price_kind')}"
        if has_length
        else "set workload.num_tokens"
    )
    reason = plan.outcome.unknown.get(key, "it is not known")
    raise InputError(f"cannot calculate the {key.replace('_', ' ')}: {reason}", where=argument("objective"), fix=fix)


@dataclass(frozen=True, slots=True)
class Floor:
    """A lower bound for all runs on a machine."""

    time_s: float
    cost_usd: float  # 0 where no price is known
    energy_j: float

    def miss(self, aim: Aim) -> float:
        """How far any run here misses what was asked, at least."""
        late_s = self.time_s - aim.deadline_s if aim.deadline_s is not None else 0.0
        return aim.miss(late_s, self.cost_usd - aim.budget_usd if aim.budget_usd is not None else 0.0)

    def of(self, objective: str, grams_per_j: float = 0.0) -> float:
        """The floor of an objective; carbon is in proportion to energy."""
        if objective == "time":
            return self.time_s
        return self.cost_usd if objective in ("cost", "tokens-per-dollar") else self.energy_j * (grams_per_j or 1.0)


def floor(cluster: Cluster, workload: Workload, step_s: float, usd_per_hour: float, node_j: float = 0.0, *, ideal: bool = False) -> Floor:
    """The least that a run needs if its steps take at least `step_s`, and a node draws at least `node_j`.

    A run that takes more than a day must expect interruptions, unless it is ideal.
    """
    num_steps, num_paid = workload.num_steps(), cluster.num_accelerators
    time_s = max(num_steps, 1) * step_s
    if num_steps and (failing := expected_in(time_s, cluster, ideal=ideal)):
        time_s, num_paid = failing.stretch(step_s) * time_s, num_paid + failing.num_spare_accelerators
    nodes = cluster.num_accelerators / cluster.accelerators_per_node
    return Floor(time_s, num_paid * time_s / HOUR * usd_per_hour, nodes * node_j)


def read_duration(text: str, where: str = argument("deadline_s")) -> float:
    """Seconds of `7d`, `36h`, `90min`, `20s`; `where` names the option that an error is about."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip()
    try:
        value = float(number) * _UNITS[unit]
    except (KeyError, ValueError):
        raise InputError(f"cannot read a duration in {text!r}", where=where, fix="write 7d, 36h, 90min or 20s") from None
    if not 0 < value < 1e12:
        raise InputError(f"{text} is no length of time", where=where, fix="give a duration above 0")
    return value
