"""Energy of a run at the wall: metered where steps have meter readings, modelled elsewhere; and the resulting carbon and water."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshwright.cost.energy import accelerator_power_w, carbon_kg, facility_energy_j, water_l
from meshwright.describe import economics
from meshwright.errors import InputError
from meshwright.ledger.timeline import Span
from meshwright.plan.plan import Plan, job_of
from meshwright.predict.outcome import DEFAULT_REGION, NOT_STATED, node_w, power_constants
from meshwright.units import per_cent

WORKS = ("compute", "optimizer", "evaluation", "unmeasured")  # at the cap, but for what a slow release adds, as the predictor has it
SHARES_CORES = ("exposed_tp", "exposed_cp", "exposed_ep")  # copies and reductions run on the same cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The energy of a run. `by_span` has joules by use for every span, or None if nothing is known about it."""

    wall_j: float | None
    metered_j: float | None  # of the accelerators only, as far as it was metered
    source: str  # metered, metered in part, modelled, unknown
    facility_j: float | None  # with cooling and distribution
    carbon_kg: float | None
    water_l: float | None
    region: str
    region_year: int | None
    method: str  # of the grid's carbon: operational or lifecycle
    facility: str
    facility_year: int
    pue: float | None
    wue_l_per_kwh: float | None  # None where it is not known
    by_span: tuple[Mapping[str, float] | None, ...]
    notes: tuple[str, ...]

    @property
    def water_of(self) -> str:
        """Whose data centres evaporate the water, in which year, by which method; or why it is unknown."""
        if self.wue_l_per_kwh is None:
            whose = "the industry" if self.facility == economics.INDUSTRY else self.facility
            return f"no litres per kWh are published for {whose}"
        return f"{self.facility}, {self.facility_year}, {self.wue_l_per_kwh:g} l per kWh of the computers"


def energy_of(spans: Sequence[Span], plan: Plan | None, region: str = "") -> Energy:
    """The energy of all spans on the plan's machine, in the region of the argument, of the cluster, or the default."""
    notes: list[str] = []
    power = _Power(plan, notes) if plan else None
    by_span = tuple(_span_j(span, power) for span in spans)
    known = bool(spans) and all(row is not None for row in by_span)
    wall_j = math.fsum(value for row in by_span if row for value in row.values()) if known else None
    metered = [span for span in spans if span.metered_j is not None]
    grid = economics.region(region or (plan.cluster.region if plan else "") or DEFAULT_REGION)
    provider = plan.cluster.provider if plan else ""
    halls = economics.facility(provider)
    is_modelled = power is not None and math.isfinite(power.cluster.accelerator.power_cap_w)
    if wall_j is None and power is not None and not is_modelled:
        notes.append(f"energy is unknown: the power of {power.cluster.accelerator.name} is {NOT_STATED}")
    if wall_j is not None and plan is not None:
        notes += _assumed(plan, region, halls.name)
    drawn_j = None if wall_j is None else float(facility_energy_j(wall_j, halls.pue))
    if wall_j is not None and halls.wue_l_per_kwh is None:
        notes.append(f"water is unknown: {f'{provider} publishes no litres per kWh' if provider else 'no provider is named'}")
    return Energy(
        wall_j=wall_j,
        metered_j=math.fsum(span.metered_j or 0.0 for span in metered) if metered else None,
        source=_source(spans, metered, wall_j, is_modelled, notes),
        facility_j=drawn_j,
        carbon_kg=None if drawn_j is None else float(carbon_kg(drawn_j, grid.grid_gco2e_per_kwh)),
        water_l=None if wall_j is None or halls.wue_l_per_kwh is None else float(water_l(wall_j, halls.wue_l_per_kwh)),
        region=grid.name,
        region_year=grid.year,
        method=grid.method,
        facility=halls.name,
        facility_year=halls.year,
        pue=halls.pue,
        wue_l_per_kwh=halls.wue_l_per_kwh,
        by_span=by_span,
        notes=tuple(notes),
    )


def _source(spans: Sequence[Span], metered: Sequence[Span], wall_j: float | None, is_modelled: bool, notes: list[str]) -> str:
    steps_s, metered_s = (math.fsum(span.end_s - span.start_s for span in some if span.what == "steps") for some in (spans, metered))
    if metered:
        counted, paid = (math.fsum((span.end_s - span.start_s) * span.num_gpus for span in some) for some in (metered, spans))
        rest = "hosts, and the rest, are modelled" if is_modelled else "hosts are left out"
        notes.append(f"a meter measured the accelerators in {per_cent(counted / paid, '.0f')} of their seconds; {rest}")
        return "metered" if metered_s >= steps_s * (1 - 1e-9) else "metered in part"
    return "unknown" if wall_j is None else "modelled"


def _assumed(plan: Plan, region: str, halls: str) -> list[str]:
    assumptions = []
    if not (region or plan.cluster.region):
        assumptions.append(f"{plan.cluster.name} names no region: the grid of {DEFAULT_REGION} is assumed")
    if halls == economics.INDUSTRY:
        assumptions.append("cooling and distribution as in the industry's mean hall")
    return assumptions


class _Power:
    """Watts of one accelerator at the wall, with its share of the host, by what it does."""

    def __init__(self, plan: Plan, notes: list[str]) -> None:
        self.cluster = plan.cluster
        self.slowdown = _slowdown(plan, notes)
        self.each_w = cache(self._each_w)

    def of(self, use: str) -> float:
        """Watts during a use; NaN if not known."""
        return self.each_w(1.0 / self.slowdown if use in WORKS else 1.0 if use in SHARES_CORES else 0.0)

    def metered(self, accelerator_w: float) -> float:
        """Watts at the wall for an accelerator that a meter saw draw so many."""
        cap_w, waiting = self.cluster.accelerator.power_cap_w, power_constants().waiting_fraction
        if self.cluster.accelerator.architecture == "cpu" or not cap_w > 0:
            return accelerator_w
        # The model is a straight line in the busy share: the share that gives the metered watts also gives the watts of the whole node.
        idle_w, busy_w = (float(accelerator_power_w(cap_w, busy, waiting)) for busy in (0.0, 1.0))
        return self._each_w((accelerator_w - idle_w) / (busy_w - idle_w))

    def _each_w(self, busy: float) -> float:
        return node_w(self.cluster, busy, power_constants())[0] / self.cluster.accelerators_per_node


def _slowdown(plan: Plan, notes: list[str]) -> float:
    """How much slower the plan's release is than the reference release."""
    if plan.cluster.accelerator.architecture == "cpu":
        return 1.0
    try:
        log_factor = job_of(plan).log_factor
    except InputError:
        notes.append(f"the software {plan.software!r} is not at hand: compute is priced at the power cap")
        return 1.0
    return max(math.exp(log_factor), 1.0)


def _span_j(span: Span, power: _Power | None) -> dict[str, float] | None:
    """Joules of a span by use, of all its accelerators; a metered sum is divided as in the model."""
    modelled = {use: power.of(use) * seconds * span.num_gpus if power else math.nan for use, seconds in span.uses_s.items()}
    total_j, took_s = math.fsum(modelled.values()), span.end_s - span.start_s
    if span.metered_j is None or took_s <= 0:
        return modelled if math.isfinite(total_j) else None
    each_w = span.metered_j / took_s / span.num_gpus
    wall_j = (power.metered(each_w) if power else each_w) * took_s * span.num_gpus
    weights = modelled if math.isfinite(total_j) and total_j > 0 else dict(span.uses_s)
    return {use: wall_j * weight / math.fsum(weights.values()) for use, weight in weights.items()}
