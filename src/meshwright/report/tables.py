"""Rows of text that a run's document and its page share: each number is formatted here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from meshwright.ledger import Ledger
from meshwright.record.profile import ProcessTimes, Profile, StreamTimes
from meshwright.report.compare import APART, PartTimes
from meshwright.report.facts import RunFacts
from meshwright.report.scaling import Point
from meshwright.units import carbon, energy, seconds, si, usd, water

Row = tuple[str, ...]
Line = tuple[str, str, str]  # name, value, remark
Source = tuple[str, str]  # what a column of parts is called, and its field of `PartTimes`

SOURCES: tuple[Source, ...] = (("predicted", "predicted_s"), ("simulated", "simulated_s"), ("measured", "measured_s"))
NONE = "-"  # shown if there is no number
RUN_COLUMNS = (
    *("run", "model", "kind", "ranks>", "batch>", "steps>", "median step>", "spread>", "p99/p50>", "tokens/s>", "time>", "loss>"),
    *("cost>", "energy>"),
)
TIME_COLUMNS = ("what", "time>", "share>", "of")
SCALING_COLUMNS = ("ranks>", "batch>", "step>", "95 % interval>", "efficiency>", "95 % interval>")
PROCESS_COLUMNS = ("process", "window>", "compute>", "exposed>", "copies>", "idle>", "communication>", "hidden>")
STREAM_COLUMNS = ("process", "stream", "events>", "communication>", "exposed>", "of the window>")
SHARES = ("compute_s", "exposed_s", "memory_s", "idle_s")  # of a process; they add up to the window


def percent(share_pct: float, digits: int = 2) -> str:
    """A share in per cent."""
    return f"{share_pct:.{digits}f} %"


def or_unknown(value: float | None, shown: Callable[[float], str]) -> str:
    """A value as text, or that it is unknown."""
    return "unknown" if value is None else shown(value)


def money(ledger: Ledger) -> str:
    """What the run cost."""
    return or_unknown(None if ledger.usd_unrounded is None else float(ledger.usd_unrounded), usd)


def price(ledger: Ledger) -> str:
    """The price that the cost is based on."""
    return str(ledger.price) if ledger.price else "no price is listed"


def grid(ledger: Ledger) -> str:
    """The region of the electricity grid, the year of its carbon intensity and the method behind that."""
    site = ledger.energy
    return ", ".join(str(word) for word in (site.region, site.region_year, site.method) if word)


def amount_rows(ledger: Ledger) -> tuple[Line, ...]:
    """Cost, energy, carbon and water, each with where it comes from."""
    site = ledger.energy
    halls = f"{site.facility}, {site.facility_year}" + (f", PUE {site.pue:g}" if site.pue else "")
    drawn = f"{ledger.energy_source}, switches left out" if ledger.energy_j is not None else "no power is stated"
    lost = f"; {usd(float(ledger.lost_usd))} of it for repeated steps" if ledger.lost_usd else ""
    return (
        ("cost", money(ledger), price(ledger) + lost),
        ("energy at the wall", or_unknown(ledger.energy_j, energy), drawn),
        ("energy of the site", or_unknown(site.facility_j, lambda joules: energy(joules, ledger.energy_j)), halls),
        ("carbon", or_unknown(ledger.carbon_kg, carbon), grid(ledger)),
        ("water on site", or_unknown(ledger.water_l, water), site.water_of),
    )


def last_loss(facts: RunFacts) -> float | None:
    """The loss of the last evaluation, or of the last step if there was no evaluation."""
    known = [evaluation.loss for evaluation in facts.evaluations if evaluation.loss is not None]
    return known[-1] if known else facts.run.records[-1].loss


def run_rows(runs: Sequence[RunFacts]) -> list[Row]:
    """The runs side by side, under `RUN_COLUMNS`."""
    most_j = max((facts.ledger.energy_j or 0.0 for facts in runs), default=0.0)
    return [_run_row(facts, most_j) for facts in runs]


def _run_row(facts: RunFacts, most_j: float) -> Row:
    summary, loss = facts.summary, last_loss(facts)
    return (
        facts.label,
        facts.model or "unknown",
        facts.kind,
        f"{facts.num_ranks:,}",
        f"{facts.batch:,}",
        f"{summary.num_steps:,}",
        seconds(summary.median_step_s),
        f"{summary.robust_std_pct:.2g} %",
        f"{summary.p99_over_p50:.3f}",
        si(summary.tokens_per_s, "") if summary.tokens_per_s else NONE,
        seconds(facts.time.total_s),
        f"{loss:.4f}" if loss is not None else NONE,
        money(facts.ledger),
        or_unknown(facts.ledger.energy_j, lambda joules: energy(joules, most_j)),
    )


def time_formula(facts: RunFacts) -> str:
    """The run's time as the time of its samples plus the rest."""
    time = facts.time
    return f"{time.samples:,} samples x {seconds(time.seconds_per_sample)} + {seconds(time.fixed_s)}"


def time_rows(facts: RunFacts) -> list[Row]:
    """Where the run's time went, under `TIME_COLUMNS`; the total last."""
    total_s = facts.time.total_s
    rows: list[Row] = [(cost.name, seconds(cost.seconds), percent(100 * cost.seconds / total_s), cost.remark) for cost in facts.time.costs]
    return [*rows, ("total", seconds(total_s), percent(100.0), "")]


def step_rows(facts: RunFacts) -> Iterator[Line]:
    """Name, value and meaning of every number about step times."""
    summary, noise, plan = facts.summary, facts.noise, facts.plan
    yield "median step", seconds(summary.median_step_s), _interval(facts)
    if plan:
        off = 100 * (summary.median_step_s / plan.step_s - 1)
        inside = "inside" if plan.low_s <= summary.median_step_s <= plan.high_s else "outside"
        yield "predicted step", seconds(plan.step_s), f"the {facts.kind} median is {off:+.1f} % off, {inside} the 80 % interval"
    yield "mean step", seconds(summary.mean_step_s), "what the parts below add up to"
    yield "spread", f"{summary.robust_std_pct:.3g} %", "robust standard deviation; stalls do not count"
    yield "p99 / p50", f"{summary.p99_over_p50:.3f}", "how slow the slow steps are"
    yield "worst", seconds(summary.worst_step_s), "of all steps"
    yield "drift", f"{summary.drift_pct:+.2f} %", "last tenth against the first"
    if noise:
        yield "noise floor", f"{noise.floor_pct:.2g} %", f"least difference that jitter within the run does not explain; {APART}"
        independent = f"{summary.num_steady_steps:,} steps are worth {noise.effective_steps:,.0f} independent ones"
        yield "correlation", f"{noise.correlation_steps:.1f} steps", independent
    else:
        yield "noise floor", "unknown", "too few steady steps"
    if found := facts.overlap:
        shown = percent(found.overlap_pct) if found.overlap_pct is not None else "unknown"
        of = f"of {seconds(found.communication_s)} a rank in steps {found.first_step:,} to {found.last_step:,}"
        traced = f"profile of {found.num_traced_ranks:,} rank{'s' if found.num_traced_ranks > 1 else ''}"
        yield "hidden communication", shown, f"{of}, behind compute of the same rank; {traced}"
    yield "steady steps", f"{summary.num_steady_steps:,}", f"of {summary.num_steps:,}; not those after a start, evaluation or checkpoint"


def _interval(facts: RunFacts) -> str:
    """How well the median is known, in per cent of it: seconds would show the same digits twice."""
    if facts.noise is None:
        return "too few steps for an interval"
    low, high = (100 * (value / facts.summary.median_step_s - 1) for value in (facts.noise.low_s, facts.noise.high_s))
    return f"95 %: {low:+.2g} to {high:+.2g} %"


def sources_of(parts: Sequence[PartTimes]) -> list[Source]:
    """The sources of the times of parts: the plan, a simulation, a measurement."""
    return [(name, key) for name, key in SOURCES if any(getattr(row, key) is not None for row in parts)]


def part_cells(row: PartTimes, sources: Sequence[Source]) -> Row:
    """One part's time by each source."""
    return tuple(seconds(value) if (value := getattr(row, key)) is not None else NONE for _, key in sources)


def scaling_row(point: Point) -> Row:
    """One size of a series, under `SCALING_COLUMNS`."""
    step = f"\u00b1 {seconds((point.high_s - point.low_s) / 2)}" if point.low_s is not None and point.high_s is not None else "unknown"
    is_base = point.low == point.high == 1.0
    bounds = f"{100 * point.low:.2f} to {100 * point.high:.2f} %" if point.low is not None and point.high is not None else "unknown"
    efficiency = percent(100 * point.efficiency), "base" if is_base else bounds
    return f"{point.num_ranks:,}", f"{point.batch:,}", seconds(point.step_s), step, *efficiency


def process_rows(profile: Profile) -> list[Row]:
    """Every process of a profile, under `PROCESS_COLUMNS`."""
    return [
        (
            process.label,
            seconds(process.window_s),
            *(percent(process.share_pct(getattr(process, key))) for key in SHARES),
            seconds(process.communication_s),
            percent(process.overlap_pct) if process.overlap_pct is not None else NONE,
        )
        for process in profile.processes
    ]


def stream_row(process: ProcessTimes, stream: StreamTimes) -> Row:
    """One stream that carries communication, under `STREAM_COLUMNS`."""
    times = (seconds(stream.communication_s), seconds(stream.exposed_s), percent(process.share_pct(stream.exposed_s)))
    return process.label, stream.stream, f"{stream.num_events:,}", *times
