"""The sections of a run's page: time, steps, parts, exposed communication, loss, memory, ranks, events, money and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from meshwright.ledger import Ledger, Rate
from meshwright.predict.placement import ranks_of
from meshwright.record.entries import PART_NAMES, Event
from meshwright.report.compare import APART, PartTimes, parts_of, total_s
from meshwright.report.facts import RunFacts
from meshwright.report.page.bars import bar, mark
from meshwright.report.page.colours import part_colour, var
from meshwright.report.page.markup import Child, Html, joined, legend, swatch, table, tag
from meshwright.report.page.run_charts import event_lanes, loss_chart, spread_chart, stacked, step_chart
from meshwright.report.page.shell import kg, litres, note_list, tile
from meshwright.units import HOUR, energy, gib, seconds, si, usd

COST_COLOURS = {
    "samples": "compute",
    "steps": "dp",
    "evaluation": "accent",
    "checkpoint": "data",
    "start": "overhead",
    "stopped": "warn",
    "lost": "loss",
    "between": "bubble",
}
STATE_COLOURS = {"compute": "compute", "exposed": "dp", "bubble": "bubble", "stalled": "warn", "checkpoint": "data", "idle": "overhead"}
QUIET = ("start", "evaluation", "checkpoint", "stall", "restart")  # events that are drawn and not listed
DETAILS = {"work_s": "work since the last stop", "lost_s": "lost of it", "checkpoint_s": "checkpoints"}  # of a fault, in words
MAX_LISTED = 25
MAX_REPLICAS = 8


def run_tiles(facts: RunFacts) -> Iterator[Html]:
    """The run in eight numbers; of a part of a job, with what the whole would take."""
    told, ledger = facts.told, facts.ledger
    yield tile(facts.time_name.capitalize(), seconds(facts.time.total_s), _time_remark(facts))
    if facts.whole_job:
        cost = f"; {usd(facts.whole_job.usd)}" if facts.whole_job.usd is not None else ""
        yield tile(
            "Whole job, extrapolated", seconds(facts.whole_job.seconds), f"{facts.whole_job.words.removeprefix('by extrapolation: ')}{cost}"
        )
    spread = f"spread {told.robust_std_pct:.2g} %, p99/p50 {told.p99_over_p50:.3f}"
    yield tile("Median step", seconds(told.median_step_s), spread)
    rate = f"{told.tokens_per_s / facts.num_ranks:,.0f} a rank, steady steps" if told.tokens_per_s else "no sequence length is recorded"
    yield tile("Tokens a second", si(told.tokens_per_s, "") if told.tokens_per_s else "unknown", rate)
    if not facts.whole_job:  # a simulated one has none, and its place is taken
        yield _loss_tile(facts)
    exposed_s = sum(told.mean_exposed_s.values())
    share = f"of the steps' time; {seconds(exposed_s)} a step on average" if told.mean_exposed_s else "no part was measured"
    yield tile("Exposed communication", f"{100 * exposed_s / told.mean_step_s:.1f} %" if told.mean_exposed_s else "unknown", share)
    yield tile(
        "Cost of these steps" if facts.whole_job else "Cost", money(ledger), f"{ledger.price}" if ledger.price else "no price is listed"
    )
    drawn = energy(ledger.energy_j) if ledger.energy_j is not None else "unknown"
    yield tile("Energy at the wall", drawn, f"{ledger.energy_source}; {ledger.num_gpus:,} accelerators")
    carbon = kg(ledger.carbon_kg) if ledger.carbon_kg is not None else "unknown"
    water = f"; {litres(ledger.water_l)} of water" if ledger.water_l is not None else "; water unknown"
    yield tile("Carbon", carbon, f"{grid(ledger)}{water}")


def _time_remark(facts: RunFacts) -> str:
    return f"{facts.time.samples:,} samples x {seconds(facts.time.seconds_per_sample)} + {seconds(facts.time.fixed_s)}"


def _loss_tile(facts: RunFacts) -> Html:
    target = facts.run.header.target
    goal = f"target {target:g}, {'reached' if facts.reached_target else 'not reached'}" if target is not None else "no target"
    known = [e.loss for e in facts.evaluations if e.loss is not None]
    if known:
        return tile("Evaluation loss", f"{known[-1]:.4f}", goal)
    last = facts.run.records[-1].loss
    return tile("Loss", f"{last:.4f}" if last is not None else "none", goal if last is not None else "simulated steps have no loss")


def money(ledger: Ledger) -> str:
    """What the run cost."""
    return "unknown" if ledger.usd_unrounded is None else usd(float(ledger.usd_unrounded))


def hours(gpu_seconds: float) -> str:
    """Accelerator-hours."""
    value = gpu_seconds / HOUR
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def grid(ledger: Ledger) -> str:
    """Whose grid, of which year, reckoned how."""
    site = ledger.energy
    return ", ".join(str(word) for word in (site.region, site.region_year, site.method) if word)


def time_part(facts: RunFacts) -> Html:
    """The run's time as a sum."""
    time = facts.time
    formula = f"{time.samples:,} samples x {seconds(time.seconds_per_sample)} + {seconds(time.fixed_s)} = {seconds(time.total_s)}"
    parts = [(f"{cost.name}: {seconds(cost.seconds)}", var(COST_COLOURS[cost.key]), cost.seconds) for cost in time.costs]
    full = sum(max(cost.seconds, 0.0) for cost in time.costs) or 1.0
    drawn = stacked([("all of the run", parts, seconds(time.total_s))], full, f"Where {seconds(time.total_s)} went")
    rows = [
        (swatch(var(COST_COLOURS[c.key]), c.name), seconds(c.seconds), f"{100 * c.seconds / time.total_s:.2f}", c.remark)
        for c in time.costs
    ]
    rows.append((tag("b", "in all"), tag("b", seconds(time.total_s)), "100.00", ""))
    listed = table(("what", "time>", "%>", "of"), rows, "Where the time went", class_="bars compact")
    return joined(tag("p", formula, class_="lead"), drawn, listed)


def step_part(facts: RunFacts) -> Html:
    """Step times over the run, how they spread, and the numbers that say it."""
    left = tag("div", tag("h3", "Over the run"), step_chart(facts))
    right = tag("div", tag("h3", "How they spread"), spread_chart([facts], [var("accent")]))
    rows = list(step_rows(facts))
    half = (len(rows) + 1) // 2
    tables = [table(("", "value>", ""), some, "Step times in numbers", class_="facts") for some in (rows[:half], rows[half:])]
    return joined(tag("div", left, right, class_="two"), tag("div", *(tag("div", one) for one in tables), class_="two"))


def step_rows(facts: RunFacts) -> Iterator[tuple[str, str, str]]:
    """Name, value and meaning of what is said about step times."""
    told, noise, plan = facts.told, facts.noise, facts.plan
    yield "median step", seconds(told.median_step_s), _interval(facts)
    if plan:
        off = 100 * (told.median_step_s / plan.step_time_s - 1)
        inside = "inside" if plan.low_s <= told.median_step_s <= plan.high_s else "outside"
        yield "predicted step", seconds(plan.step_time_s), f"the {facts.kind} median is {off:+.1f} % off, {inside} the 80 % interval"
    yield "mean step", seconds(told.mean_step_s), "what the parts below add up to"
    yield "spread", f"{told.robust_std_pct:.3g} %", "robust standard deviation; stalls do not count"
    yield "p99 / p50", f"{told.p99_over_p50:.3f}", "how far the slow steps reach"
    yield "worst", seconds(told.worst_step_s), "of all steps"
    yield "drift", f"{told.drift_pct:+.2f} %", "last tenth against the first"
    if noise:
        yield "noise floor", f"{noise.floor_pct:.2g} %", f"least difference that jitter within the run does not explain; {APART}"
        yield (
            "correlation",
            f"{noise.correlation_steps:.1f} steps",
            f"{told.num_steady_steps:,} steps tell as much as {noise.effective_steps:,.0f}",
        )
    else:
        yield "noise floor", "unknown", "too few steady steps"
    yield "steady steps", f"{told.num_steady_steps:,}", f"of {told.num_steps:,}; not those after a start, evaluation or checkpoint"


def _interval(facts: RunFacts) -> str:
    """How well the median is known, in per cent of it: seconds would show the same digits twice."""
    if facts.noise is None:
        return "too few steps for an interval"
    low, high = (100 * (value / facts.told.median_step_s - 1) for value in (facts.noise.low_s, facts.noise.high_s))
    return f"95 %: {low:+.2g} to {high:+.2g} %"


def parts_part(facts: RunFacts, simulated: RunFacts | None) -> Html:
    """The parts of the step, predicted, simulated and measured, as bars on one scale and in numbers."""
    parts = parts_of(facts, simulated)
    sources = [(name, key) for name, key in SOURCES if any(getattr(row, key) is not None for row in parts)]
    if not parts or not sources:
        return tag("p", "Neither the plan nor the run names parts of the step.", class_="soft")
    totals = {key: total_s(parts, key, facts) for _, key in sources}
    full = max(totals.values()) or 1.0
    bars = [(name, [_piece(row, key) for row in parts if getattr(row, key)], seconds(totals[key])) for name, key in sources]
    drawn = stacked(bars, full, f"Parts of the step, {', '.join(name for name, _ in sources)}")
    rows: list[tuple[Child, ...]] = []
    for row in parts:
        cells = [seconds(value) if (value := getattr(row, key)) is not None else "\u2013" for _, key in sources]
        rows.append((swatch(part_colour(row.part), PART_NAMES[row.part]), *cells, _against(row)))
    rows.append((tag("b", "mean step"), *(tag("b", seconds(totals[key])) for _, key in sources), ""))
    columns = ("part", *(f"{name}>" for name, _ in sources), "off, % of predicted step>")
    beside = f" Simulated: {simulated.label}." if simulated else ""
    off = f"{sources[-1][0]} less predicted"
    caption = f"Mean of the steady steps, on the busiest stage.{beside}" + (f" Off: {off}." if "predicted_s" in totals else "")
    rows = [(*row[:-1], _share(row[-1], totals.get("predicted_s"))) for row in rows]
    return joined(drawn, table(columns, rows, "Parts of the step", caption=caption, class_="bars compact"))


SOURCES = (("predicted", "predicted_s"), ("simulated", "simulated_s"), ("measured", "measured_s"))


def _piece(row: PartTimes, key: str) -> tuple[str, str, float]:
    value = float(getattr(row, key))
    return f"{PART_NAMES[row.part]}: {seconds(value)}", part_colour(row.part), value


def _against(row: PartTimes) -> float | None:
    """Measured, or else simulated, less predicted."""
    last = row.measured_s if row.measured_s is not None else row.simulated_s
    return None if last is None or row.predicted_s is None else last - row.predicted_s


def _share(off_s: Child, of_s: float | None) -> str:
    return f"{round(100 * off_s / of_s, 1) + 0.0:+.1f}" if isinstance(off_s, float) and of_s else ""


def exposed_part(facts: RunFacts, simulated: RunFacts | None) -> Html:
    """Waiting for communication by axis, predicted, simulated and measured."""
    rows = [row for row in parts_of(facts, simulated) if row.part.startswith("exposed_")]
    if not rows:
        return tag("p", "No communication is exposed, or none was measured.", class_="soft")
    sources = [(name, key) for name, key in SOURCES if any(getattr(row, key) is not None for row in rows)]
    longest = max((getattr(row, key) or 0.0) for row in rows for _, key in sources) or 1.0
    steps_s = {key: total_s(parts_of(facts, simulated), key, facts) for _, key in sources}
    cells = []
    for row in rows:
        axis = row.part.removeprefix("exposed_")
        over = ranks_of(axis, facts.plan.layout) if facts.plan else {}
        name = " x ".join(f"{each} {degree}" for each, degree in over.items()) or axis
        for number, (source, key) in enumerate(sources):
            value = getattr(row, key)
            drawn = bar([(0.0, (value or 0.0) / longest, var(axis))]) if value is not None else Html("")
            label = tag("b", name, style=f"color:{var(axis)}") if number == 0 else ""
            share = f"{100 * value / steps_s[key]:.2f}" if value is not None and steps_s[key] else ""
            cells.append((label, source, drawn, seconds(value) if value is not None else "\u2013", share))
    return table(
        ("axis", "", "exposed", "time>", "%>"),
        cells,
        "Exposed communication by axis",
        caption="Time that a step waits, and its share of the step",
        class_="bars wide-bar third",
    )


def loss_part(facts: RunFacts) -> Html:
    """The loss of one run."""
    drawn = loss_chart([facts], [var("accent")])
    if not facts.evaluations or not any(e.loss is not None for e in facts.evaluations):
        return drawn
    return joined(legend([(var("accent"), "pale: each step; line: running mean; dots: evaluations")]), drawn)


def memory_part(facts: RunFacts) -> Html:
    """Memory of the fullest accelerator, predicted and measured, against what it has."""
    plan, measured = facts.plan, facts.measured_memory_bytes
    if plan is None:
        return tag("p", f"At most {gib(measured)} in a step." if measured else "Neither predicted nor recorded.", class_="soft")
    room = plan.cluster.accelerator.memory_bytes
    full = max(room, plan.peak_memory_bytes, measured or 0.0) * 1.02
    found = [("predicted", plan.peak_memory_bytes, var("weights")), ("measured", measured, var("accent"))]
    rows = [
        (
            name,
            bar([(0.0, size / full, colour)], mark(room / full, var("ink"))) if size is not None else "not recorded",
            _memory(size) if size is not None else "",
            f"{100 * size / room:.1f}" if size is not None else "",
        )
        for name, size, colour in found
    ]
    caption = f"The fullest accelerator at its peak; the line is what {plan.cluster.accelerator.name} has, {_memory(room)}"
    return table(("", "memory", "size>", "% full>"), rows, "Memory", caption=caption, class_="bars wide-bar")


def _memory(size: float) -> str:
    return gib(size) if size >= 2**30 else f"{size / 2**20:.1f} MiB"


def ranks_part(facts: RunFacts) -> Html:
    """Who was slow."""
    events = [event for event in facts.run.events if event.kind in ("slow_rank", "recovered_rank")]
    said = [tag("li", f"step {event.step:,}: {event.detail.get('said', event.detail)}") for event in events[:MAX_LISTED]]
    if len(events) > MAX_LISTED:
        said.append(tag("li", f"and {len(events) - MAX_LISTED:,} more"))
    if not said and not facts.slowest_replicas:
        return tag("p", "No rank was reported as slow.", class_="soft")
    return joined(tag("ul", *said) if said else None, _replicas(facts) if facts.slowest_replicas else None)


def _replicas(facts: RunFacts) -> Html:
    """Who was the slowest replica more often than chance would have it."""
    num_steps = sum(replica.num_steps for replica in facts.slowest_replicas)
    num_replicas = facts.plan.layout.dp if facts.plan else len(facts.slowest_replicas)
    if num_replicas < 2:
        return Html("")
    first, chance = facts.slowest_replicas[0], 1 / num_replicas
    shown = [one for one in facts.slowest_replicas[:MAX_REPLICAS] if beyond_chance(one.num_steps, num_steps, num_replicas)]
    if not shown:
        most = f"the most often replica {first.number}, in {first.num_steps:,} of {num_steps:,} steps"
        return tag("p", f"Of {num_replicas:,} replicas none was the slowest more often than chance would have it; {most}.")
    full = max(shown[0].num_steps / num_steps, 3 * chance)
    rows = []
    for one in shown:
        share = one.num_steps / num_steps
        drawn = bar([(0.0, share / full, var("dp"))], mark(chance / full, var("ink")))
        rows.append((f"replica {one.number}", drawn, f"{one.num_steps:,}", f"{100 * share:.1f}"))
    caption = f"Which of {num_replicas:,} replicas the others waited for; the line is chance, {100 * chance:.2g} %"
    return table(("slowest", "of the steps", "steps>", "%>"), rows, "Slowest replicas", caption=caption, class_="bars wide-bar")


def beyond_chance(count: int, num_steps: int, num_replicas: int) -> bool:
    """Whether the one that was slowest `count` times stands out: Chernoff's bound of that chance, for any of the replicas, is below 1 %."""
    share, chance = count / num_steps, 1 / num_replicas
    if share <= chance:
        return False
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return math.log(num_replicas) - num_steps * (share * math.log(share / chance) + rest) < math.log(0.01)


def events_part(facts: RunFacts) -> Html:
    """The events as lanes over time, and in words those that are not routine."""
    if not facts.run.events:
        return tag("p", "No event is recorded.", class_="soft")
    notable = [event for event in facts.run.events if event.kind not in QUIET]
    rows = [(seconds(event.time_s), f"{event.step:,}", event.kind.replace("_", " "), _detail(event)) for event in notable[:MAX_LISTED]]
    left = len(notable) - len(rows)
    caption = f"The first {len(rows)} of {len(notable):,}; events.jsonl has them all" if left > 0 else ""
    listed = table(("at", "step>", "what", "in words"), rows, "Events", caption=caption, class_="listed") if rows else None
    return joined(event_lanes(facts.run.events), listed)


def _detail(event: Event) -> str:
    said = event.detail.get("said")
    if isinstance(said, str):
        return said
    return ", ".join(_named(key, value) for key, value in event.detail.items())


def _named(key: str, value: object) -> str:
    """A detail of an event with its unit, as its name tells it."""
    if key == "price" and (rate := Rate.from_json(value)):
        return f"price {rate}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key.endswith("_s"):
        name = DETAILS.get(key, key.removesuffix("_s").replace("_", " "))
        return f"{name} {seconds(float(value))}"  # type: ignore[arg-type]
    words = f"{value:.6g}" if isinstance(value, float) else str(value)[:200]
    return f"{DETAILS.get(key, key.replace('_', ' '))} {words.replace('_', ' ') if key == 'cause' else words}"


def money_part(facts: RunFacts) -> Html:
    """Accelerator-hours by what they were spent on, and what they cost in money, energy, carbon and water."""
    ledger = facts.ledger
    total = sum(ledger.gpu_seconds.values()) or 1.0
    states = [(state, amount) for state, amount in ledger.gpu_seconds.items() if amount > 0]
    pieces = [(f"{state}: {hours(amount)} accelerator-hours", var(STATE_COLOURS[state]), amount) for state, amount in states]
    drawn = stacked([("accelerator-hours", pieces, f"{hours(total)} h")], total, "Accelerator-hours by what they were spent on")
    by_state = ledger.usd_by_state if ledger.usd is not None and ledger.usd >= 1 else None  # of a few cents nothing is left for each
    rows = [
        (
            swatch(var(STATE_COLOURS[state]), state),
            hours(amount),
            f"{100 * amount / total:.2f}",
            *((f"${by_state[state]:,.2f}",) if by_state else ()),
        )
        for state, amount in states
    ]
    columns = ("spent on", "hours>", "%>", *(("cost>",) if by_state else ()))
    listed = table(columns, rows, "Accelerator-hours by state", class_="bars")
    left = tag("div", drawn, listed)
    right = tag("div", table(("", "value>", "how"), _amounts(ledger), "Money, energy, carbon, water", class_="facts"))
    return joined(tag("div", left, right, class_="two"), note_list(_sentence(note) for note in ledger.notes))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _amounts(ledger: Ledger) -> Sequence[tuple[str, str, str]]:
    site = ledger.energy
    halls = f"{site.facility}, {site.facility_year}" + (f", PUE {site.pue:g}" if site.pue else "")
    lost = f"; {usd(float(ledger.lost_usd))} of it for steps done again" if ledger.lost_usd else ""
    return (
        ("cost", money(ledger), (f"{ledger.price}" if ledger.price else "no price is listed") + lost),
        ("energy at the wall", _or_unknown(ledger.energy_j, energy), f"{ledger.energy_source}, switches left out"),
        ("energy of the site", _or_unknown(site.facility_j, lambda joules: energy(joules, ledger.energy_j)), halls),
        ("carbon", _or_unknown(ledger.carbon_kg, kg), grid(ledger)),
        ("water on site", _or_unknown(ledger.water_l, litres), site.water_of),
    )


def _or_unknown(value: float | None, said: Callable[[float], str]) -> str:
    return "unknown" if value is None else said(value)
