"""The ledger of a run: accelerator-seconds by state, money to the cent, energy, carbon and water, all from the run's own records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal, localcontext
from functools import cached_property
from pathlib import Path

from meshwright.ledger.energy import Energy, energy_of
from meshwright.ledger.own_plan import own_plan
from meshwright.ledger.rate import Rate, rate_of
from meshwright.ledger.timeline import BESIDE, MISSING, SPARES, Span, spans_of, unbelievable
from meshwright.plan.plan import Plan
from meshwright.record.header import RUNNING
from meshwright.record.run import Run, read_run
from meshwright.units import HOUR

STATES = ("compute", "exposed", "bubble", "stalled", "recovering", "checkpoint", "idle")
CENT = Decimal("0.01")
DIGITS = 60  # of sums: more than any run has cents

# The state of every second. Stalled means that something failed; recovering, that the run goes on after a fault, from its last step before
# that to the next; idle means paid time without work of the accelerators.
STATE_OF = {
    "compute": "compute",
    "optimizer": "compute",
    "evaluation": "compute",
    "unmeasured": "compute",
    **{f"exposed_{axis}": "exposed" for axis in ("tp", "cp", "pp", "dp", "ep")},
    "bubble": "bubble",
    "stalled": "stalled",
    "recovering": "recovering",
    "checkpoint": "checkpoint",
    "data": "idle",
    "overhead": "idle",
    "unaccounted": "idle",
    "starting": "idle",
    "gap": "idle",
    "spare": "idle",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line: what accelerators did in one state during a part of the run. Lines of one part share its time."""

    start_s: float  # since the run's first start
    end_s: float
    what: str  # steps, evaluation, checkpoint, start, restart, between steps, spare nodes, ...
    state: str  # one of STATES
    gpu_seconds: float
    usd: Decimal | None  # whole cents; None without a price
    joules: float | None  # at the wall; None if the power is not known
    usd_per_gpu_hour: Decimal | None
    first_step: int | None = None
    last_step: int | None = None
    is_lost: bool = False  # work that was done again later


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """The ledger of a run. Entries add up to the totals: money to the cent, seconds except for rounding."""

    name: str
    kind: str  # trained or simulated
    status: str
    num_gpus: int  # the largest number that was paid for at once, spares included
    wall_s: float  # seconds that are paid for
    entries: tuple[Entry, ...]
    price: Rate | None  # the last one, if it changed between two starts
    usd_unrounded: Decimal | None
    energy: Energy
    notes: tuple[str, ...]  # what is unknown or assumed

    @cached_property
    def gpu_seconds(self) -> Mapping[str, float]:
        """Accelerator-seconds by state."""
        return {state: math.fsum(e.gpu_seconds for e in self.entries if e.state == state) for state in STATES}

    @cached_property
    def usd_by_state(self) -> Mapping[str, Decimal] | None:
        """Whole cents by state; they add up to `usd`."""
        if self.usd_unrounded is None:
            return None
        return {state: sum((e.usd or Decimal(0) for e in self.entries if e.state == state), Decimal("0.00")) for state in STATES}

    @property
    def usd(self) -> Decimal | None:
        """US dollars that the run cost, to the cent."""
        return None if self.usd_unrounded is None else to_cent(self.usd_unrounded)

    @property
    def lost_gpu_seconds(self) -> float:
        """Accelerator-seconds of steps that had to be done again."""
        return math.fsum(e.gpu_seconds for e in self.entries if e.is_lost)

    @property
    def lost_usd(self) -> Decimal | None:
        """US dollars for the steps that had to be done again."""
        return None if self.usd_unrounded is None else sum((e.usd or Decimal(0) for e in self.entries if e.is_lost), Decimal("0.00"))

    @property
    def energy_j(self) -> float | None:
        """Joules at the wall, switches left out."""
        return self.energy.wall_j

    @property
    def energy_source(self) -> str:
        """`metered`, `metered in part`, `modelled` or `unknown`."""
        return self.energy.source

    @property
    def carbon_kg(self) -> float | None:
        """Kilograms of CO2-equivalent of the energy of the facility."""
        return self.energy.carbon_kg

    @property
    def water_l(self) -> float | None:
        """Litres of water on site."""
        return self.energy.water_l


def ledger_of(folder: Path | str, *, price: Rate | None = None, region: str = "") -> Ledger:
    """The ledger of the run in `folder`, also while it is being written. `price` and `region` replace the recorded or described ones."""
    folder = Path(folder)
    run = read_run(folder)
    notes = ["the run changed its plan: power is that of the last one"] if any(folder.glob("plan-until-step-*.json")) else []
    plan, problem = own_plan(folder, run.header)
    if problem:
        notes.append(problem)
    return ledger_of_run(run, plan, price=price, region=region, notes=notes)


def ledger_of_run(run: Run, plan: Plan | None, *, price: Rate | None = None, region: str = "", notes: Iterable[str] = ()) -> Ledger:
    """The ledger of a run that was read, with its plan."""
    with localcontext(prec=DIGITS):
        return _ledger(run, plan, price, region, notes)


def _ledger(run: Run, plan: Plan | None, price: Rate | None, region: str, notes: Iterable[str]) -> Ledger:
    spans = spans_of(run)
    listed = rate_of(plan.cluster) if plan else None
    rates = [price or span.rate or listed for span in spans]
    energy = energy_of(spans, plan, region)
    rows = [(span, rate, *row) for span, rate, joules in zip(spans, rates, energy.by_span, strict=True) for row in _by_state(span, joules)]
    exact = [None if rate is None else _usd(gpu_seconds, rate) for _, rate, _, gpu_seconds, _ in rows]
    is_priced = bool(rows) and None not in exact
    usd = in_cents([value or Decimal(0) for value in exact], [state for _, _, state, _, _ in rows]) if is_priced else [None] * len(rows)
    last = price or (rates[-1] if rates else listed)
    return Ledger(
        name=run.header.name,
        kind=run.header.kind,
        status=run.header.status,
        num_gpus=_most_gpus(spans, run.header.num_ranks),
        wall_s=math.fsum(span.end_s - span.start_s for span in spans if span.what not in BESIDE),
        entries=tuple(_entry(row, cents) for row, cents in zip(rows, usd, strict=True)),
        price=last,
        usd_unrounded=sum((value or Decimal(0) for value in exact), Decimal(0)) if is_priced or (not rows and last) else None,
        energy=energy,
        notes=(*notes, *_notes(run, spans, rates, price), *energy.notes),
    )


def _most_gpus(spans: Sequence[Span], default: int) -> int:
    """The largest number of accelerators that were paid for at once, with spares and with those of lost replicas."""
    missing = {span.start_s: span.num_gpus for span in spans if span.what == MISSING}
    training = [span.num_gpus + missing.get(span.start_s, 0) for span in spans if span.what not in BESIDE]
    return max(training, default=default) + sum(span.num_gpus for span in spans if span.what == SPARES)


def _by_state(span: Span, joules: Mapping[str, float] | None) -> list[tuple[str, float, float | None]]:
    """State, accelerator-seconds and joules of a span."""
    seconds: dict[str, float] = {}
    energy: dict[str, float] = {}
    for use, used_s in span.uses_s.items():
        state = STATE_OF[use]
        seconds[state] = seconds.get(state, 0.0) + used_s * span.num_gpus
        energy[state] = energy.get(state, 0.0) + (joules[use] if joules else 0.0)
    return [(state, seconds[state], energy[state] if joules else None) for state in STATES if seconds.get(state, 0.0) > 0]


Row = tuple[Span, Rate | None, str, float, float | None]


def _entry(row: Row, usd: Decimal | None) -> Entry:
    span, rate, state, gpu_seconds, joules = row
    return Entry(
        start_s=span.start_s,
        end_s=span.end_s,
        what=span.what,
        state=state,
        gpu_seconds=gpu_seconds,
        usd=usd,
        joules=joules,
        usd_per_gpu_hour=rate.usd_per_gpu_hour if rate else None,
        first_step=span.first_step,
        last_step=span.last_step,
        is_lost=span.is_lost,
    )


def _usd(gpu_seconds: float, rate: Rate) -> Decimal:
    return Decimal(repr(gpu_seconds)) * rate.usd_per_gpu_hour / Decimal(HOUR)


def to_cent(usd: Decimal) -> Decimal:
    """The amount in whole cents."""
    with localcontext(prec=DIGITS):
        return usd.quantize(CENT, rounding=ROUND_HALF_EVEN)


def in_cents(exact: Sequence[Decimal], groups: Sequence[str]) -> list[Decimal]:
    """Amounts in whole cents whose sum is the rounded sum, and whose sums by group differ by less than a cent from the exact ones.

    Groups share the rounded total by largest remainder. Within a group the running sum is rounded, and each entry gets the difference.
    """
    by_group = {
        group: sum((value for value, of in zip(exact, groups, strict=True) if of == group), Decimal(0)) for group in dict.fromkeys(groups)
    }
    owed = _largest_remainder(by_group)
    reached = dict.fromkeys(by_group, Decimal(0))
    given = dict.fromkeys(by_group, Decimal("0.00"))
    found = []
    for value, group in zip(exact, groups, strict=True):
        reached[group] += value
        whole = by_group[group]
        upto = to_cent(owed[group] * (reached[group] / whole)) if whole else Decimal("0.00")
        found.append(upto - given[group])
        given[group] = upto
    return found


def _largest_remainder(exact: Mapping[str, Decimal]) -> dict[str, Decimal]:
    """Whole cents for each amount, which add up to the rounded total."""
    floors = {name: (value // CENT) * CENT for name, value in exact.items()}
    missing = int((to_cent(sum(exact.values(), Decimal(0))) - sum(floors.values(), Decimal(0))) / CENT)
    first = sorted(exact, key=lambda name: floors[name] - exact[name])[:missing]
    return {name: floor.quantize(CENT) + (CENT if name in first else 0) for name, floor in floors.items()}


def _unread_price(run: Run) -> str:
    """The note on a recorded price that cannot be read; nothing if there is none."""
    recorded = [event.detail.get("price") for event in run.events if event.kind in ("start", "resumed")]
    bad = next((one for one in recorded if one is not None and Rate.from_json(one) is None), None)
    if bad is None:
        return ""
    shown = bad.get("usd_per_gpu_hour", bad) if isinstance(bad, Mapping) else bad
    return f"the price recorded with the run, {repr(shown)[:40]}, cannot be read"


def _notes(run: Run, spans: Sequence[Span], rates: Sequence[Rate | None], price: Rate | None) -> list[str]:
    notes = []
    if not spans:
        notes.append("nothing is recorded yet")
    if run.header.status == RUNNING:
        notes.append("the run has not ended: up to the last step or event")
    if run.damage:
        notes.append(f"{len(run.damage)} damaged lines are left out, the first: {run.damage[0]}")
    if left_out := unbelievable(run):
        notes.append(f"{left_out} events with times that no run can have are left out")
    unread = _unread_price(run)
    if spans and None in rates:
        none = "no price is listed for the machine, and none was given (a price is written like 2.5USD/h, per accelerator)"
        notes += [unread, none] if unread else [none]
    elif price is None and any(span.rate is None for span in spans):
        notes.append(f"{unread or 'no price was recorded with the run'}: today's price of the catalogue is used")
    known = {rate.usd_per_gpu_hour for rate in rates if rate}
    if len(known) > 1:
        notes.append(f"the price changed between starts: {' and '.join(f'${usd:f}' for usd in sorted(known))} per accelerator-hour")
    if any("unmeasured" in span.uses_s for span in spans):
        notes.append("steps without measured parts count as compute")
    return notes
