"""The sections of a run's page: time, steps, parts, exposed communication, loss, memory, ranks, events, money and energy."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.ledger import Rate
from meshwright.predict.placement import ranks_of
from meshwright.record.entries import PART_NAMES, Event
from meshwright.report.compare import PartTimes, parts_of, total_s
from meshwright.report.facts import RunFacts, flight_words
from meshwright.report.incidents import INCIDENT_COLUMNS, incident_rows
from meshwright.report.page.bars import bar, mark
from meshwright.report.page.colours import part_colour, var
from meshwright.report.page.markup import Child, Html, joined, legend, swatch, table, tag
from meshwright.report.page.run_charts import event_lanes, loss_chart, spread_chart, stacked, step_chart
from meshwright.report.page.shell import note_list, tile
from meshwright.report.tables import (
    NONE,
    TIME_COLUMNS,
    amount_rows,
    grid,
    money,
    or_unknown,
    part_cells,
    price,
    sources_of,
    step_rows,
    time_formula,
    time_rows,
)
from meshwright.units import HOUR, carbon, energy, gib, seconds, si, usd, water

COST_COLOURS = {
    "samples": "compute",
    "steps": "dp",
    "evaluation": "accent",
    "checkpoint": "data",
    "start": "overhead",
    "stopped": "warn",
    "recovery": "warn",
    "change": "optimizer",
    "lost": "loss",
    "between": "bubble",
}
STATE_COLOURS = {
    "compute": "compute",
    "exposed": "dp",
    "bubble": "bubble",
    "stalled": "warn",
    "recovering": "loss",
    "checkpoint": "data",
    "idle": "overhead",
}
QUIET = ("start", "evaluation", "checkpoint", "stall", "restart", "incident", "replay")  # events that are drawn but not listed
DETAILS = {"work_s": "work since the last stop", "lost_s": "lost of it", "checkpoint_s": "checkpoints"}  # details of a fault, in words
MAX_LISTED = 25
SLOWNESS = ("slow_rank", "recovered_rank", "slow_link", "recovered_link")  # events that name what is slow
MAX_REPLICAS = 8


def run_tiles(facts: RunFacts) -> Iterator[Html]:
    """The run in eight numbers; if only a part of the workload was simulated, with the time of the whole."""
    summary, ledger = facts.summary, facts.ledger
    yield tile(facts.time_name.capitalize(), seconds(facts.time.total_s), time_formula(facts))
    if facts.whole_job:
        cost = f"; {usd(facts.whole_job.usd)}" if facts.whole_job.usd is not None else ""
        yield tile(
            "Whole job, extrapolated", seconds(facts.whole_job.seconds), f"{facts.whole_job.words.removeprefix('by extrapolation: ')}{cost}"
        )
    spread = f"spread {summary.robust_std_pct:.2g} %, p99/p50 {summary.p99_over_p50:.3f}"
    yield tile("Median step", seconds(summary.median_step_s), spread)
    rate = summary.tokens_per_s
    each = f"{rate / facts.num_ranks:,.0f} per rank, steady steps" if rate else "no sequence length is recorded"
    yield tile("Tokens per second", si(rate, "") if rate else "unknown", each)
    if not facts.whole_job:  # the tile of the whole job takes the place of the loss, which a simulated run does not have
        yield _loss_tile(facts)
    exposed_s = sum(summary.mean_exposed_s.values())
    share = f"of the steps' time; {seconds(exposed_s)} per step on average" if summary.mean_exposed_s else "no part was measured"
    yield tile("Exposed communication", f"{100 * exposed_s / summary.mean_step_s:.1f} %" if summary.mean_exposed_s else "unknown", share)
    yield tile("Cost of these steps" if facts.whole_job else "Cost", money(ledger), price(ledger))
    yield tile("Energy at the wall", or_unknown(ledger.energy_j, energy), f"{ledger.energy_source}; {ledger.num_gpus:,} accelerators")
    used = f"; {water(ledger.water_l)} of water" if ledger.water_l is not None else "; water unknown"
    yield tile("Carbon", or_unknown(ledger.carbon_kg, carbon), f"{grid(ledger)}{used}")


def _loss_tile(facts: RunFacts) -> Html:
    target = facts.run.header.target
    goal = f"target {target:g}, {'reached' if facts.reached_target else 'not reached'}" if target is not None else "no target"
    known = [e.loss for e in facts.evaluations if e.loss is not None]
    if known:
        return tile("Evaluation loss", f"{known[-1]:.4f}", goal)
    last = facts.run.records[-1].loss
    return tile("Loss", f"{last:.4f}" if last is not None else "none", goal if last is not None else "simulated steps have no loss")


def hours(gpu_seconds: float) -> str:
    """Accelerator-hours."""
    value = gpu_seconds / HOUR
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def time_part(facts: RunFacts) -> Html:
    """The run's time as a sum."""
    time = facts.time
    formula = f"{time_formula(facts)} = {seconds(time.total_s)}"
    parts = [(f"{cost.name}: {seconds(cost.seconds)}", var(COST_COLOURS[cost.key]), cost.seconds) for cost in time.costs]
    full = sum(max(cost.seconds, 0.0) for cost in time.costs) or 1.0
    drawn = stacked([("all of the run", parts, seconds(time.total_s))], full, f"Where {seconds(time.total_s)} went")
    *rows, total = time_rows(facts)
    cells: list[tuple[Child, ...]] = [
        (swatch(var(COST_COLOURS[cost.key]), row[0]), *row[1:]) for cost, row in zip(time.costs, rows, strict=True)
    ]
    cells.append((tag("b", total[0]), tag("b", total[1]), *total[2:]))
    listed = table(TIME_COLUMNS, cells, "Where the time went", class_="bars compact")
    return joined(tag("p", formula, class_="lead"), drawn, listed)


def step_part(facts: RunFacts) -> Html:
    """Step times over the run, their spread, and both in numbers."""
    left = tag("div", tag("h3", "Over the run"), step_chart(facts))
    right = tag("div", tag("h3", "How they spread"), spread_chart([facts], [var("accent")]))
    rows = list(step_rows(facts))
    half = (len(rows) + 1) // 2
    tables = [table(("", "value>", ""), some, "Step times in numbers", class_="facts") for some in (rows[:half], rows[half:])]
    return joined(tag("div", left, right, class_="two"), tag("div", *(tag("div", one) for one in tables), class_="two"))


def parts_part(facts: RunFacts, simulated: RunFacts | None) -> Html:
    """The parts of the step, predicted, simulated and measured, as bars on one scale and in numbers."""
    parts = parts_of(facts, simulated)
    sources = sources_of(parts)
    if not parts or not sources:
        return tag("p", "Neither the plan nor the run has parts of the step.", class_="soft")
    totals = {key: total_s(parts, key, facts) for _, key in sources}
    full = max(totals.values()) or 1.0
    bars = [(name, [_piece(row, key) for row in parts if getattr(row, key)], seconds(totals[key])) for name, key in sources]
    drawn = stacked(bars, full, f"Parts of the step, {', '.join(name for name, _ in sources)}")
    rows: list[tuple[Child, ...]] = []
    for row in parts:
        rows.append((swatch(part_colour(row.part), PART_NAMES[row.part]), *part_cells(row, sources), _against(row)))
    rows.append((tag("b", "mean step"), *(tag("b", seconds(totals[key])) for _, key in sources), ""))
    columns = ("part", *(f"{name}>" for name, _ in sources), "off, % of predicted step>")
    beside = f" Simulated: {simulated.label}." if simulated else ""
    off = f"{sources[-1][0]} less predicted"
    caption = f"Mean of the steady steps, on the busiest stage.{beside}" + (f" Off: {off}." if "predicted_s" in totals else "")
    rows = [(*row[:-1], _share(row[-1], totals.get("predicted_s"))) for row in rows]
    return joined(drawn, table(columns, rows, "Parts of the step", caption=caption, class_="bars compact"))


def _piece(row: PartTimes, key: str) -> tuple[str, str, float]:
    value = float(getattr(row, key))
    return f"{PART_NAMES[row.part]}: {seconds(value)}", part_colour(row.part), value


def _against(row: PartTimes) -> float | None:
    """Measured (or else simulated) time minus predicted time."""
    last = row.measured_s if row.measured_s is not None else row.simulated_s
    return None if last is None or row.predicted_s is None else last - row.predicted_s


def _share(off_s: Child, of_s: float | None) -> str:
    return f"{round(100 * off_s / of_s, 1) + 0.0:+.1f}" if isinstance(off_s, float) and of_s else ""


def exposed_part(facts: RunFacts, simulated: RunFacts | None) -> Html:
    """Exposed communication by axis: predicted, simulated and measured."""
    rows = [row for row in parts_of(facts, simulated) if row.part.startswith("exposed_")]
    if not rows:
        return tag("p", "No communication is exposed, or none was measured.", class_="soft")
    sources = sources_of(rows)
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
            cells.append((label, source, drawn, seconds(value) if value is not None else NONE, share))
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
    """Memory used on the fullest accelerator, predicted and measured, compared with its capacity."""
    plan, measured = facts.plan, facts.measured_memory_bytes
    if plan is None:
        return tag("p", f"At most {gib(measured)} in a step." if measured else "Neither predicted nor recorded.", class_="soft")
    room = plan.cluster.accelerator.room_bytes
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
    """Which ranks, links and replicas were slow."""
    events = [event for event in facts.run.events if event.kind in SLOWNESS]
    items = [tag("li", f"step {event.step:,}: {event.detail.get('message', event.detail)}") for event in events[:MAX_LISTED]]
    if len(events) > MAX_LISTED:
        items.append(tag("li", f"and {len(events) - MAX_LISTED:,} more"))
    if not items and not facts.slowest_replicas:
        return tag("p", "No rank and no link was reported as slow.", class_="soft")
    return joined(tag("ul", *items) if items else None, _replicas(facts) if facts.slowest_replicas else None)


def _replicas(facts: RunFacts) -> Html:
    """Which replicas were the slowest more often than by chance."""
    num_steps = sum(replica.num_steps for replica in facts.slowest_replicas)
    num_replicas = facts.plan.layout.dp if facts.plan else len(facts.slowest_replicas)
    if num_replicas < 2:
        return Html("")
    first, chance = facts.slowest_replicas[0], 1 / num_replicas
    shown = [one for one in facts.slowest_replicas[:MAX_REPLICAS] if beyond_chance(one.num_steps, num_steps, num_replicas)]
    if not shown:
        most = f"the most often replica {first.number}, in {first.num_steps:,} of {num_steps:,} steps"
        return tag("p", f"Of {num_replicas:,} replicas none was the slowest more often than by chance; {most}.")
    full = max(shown[0].num_steps / num_steps, 3 * chance)
    rows = []
    for one in shown:
        share = one.num_steps / num_steps
        drawn = bar([(0.0, share / full, var("dp"))], mark(chance / full, var("ink")))
        rows.append((f"replica {one.number}", drawn, f"{one.num_steps:,}", f"{100 * share:.1f}"))
    caption = f"Which of {num_replicas:,} replicas the others waited for; the line is chance, {100 * chance:.2g} %"
    return table(("slowest", "of the steps", "steps>", "%>"), rows, "Slowest replicas", caption=caption, class_="bars wide-bar")


def beyond_chance(count: int, num_steps: int, num_replicas: int) -> bool:
    """Whether being slowest `count` times is more than chance: Chernoff's bound on its probability, for any replica, is below 1 %."""
    share, chance = count / num_steps, 1 / num_replicas
    if share <= chance:
        return False
    rest = (1 - share) * math.log((1 - share) / (1 - chance)) if share < 1 else 0.0
    return math.log(num_replicas) - num_steps * (share * math.log(share / chance) + rest) < math.log(0.01)


def incidents_part(facts: RunFacts) -> Html | None:
    """What broke, when it was noticed, what was done, and what it cost; None if nothing broke."""
    rows = list(incident_rows(facts.run.events))
    if not rows:
        return None
    caption = f"The last {MAX_LISTED} of {len(rows):,}" if len(rows) > MAX_LISTED else ""
    return table(INCIDENT_COLUMNS, rows[-MAX_LISTED:], "Incidents", caption=caption, class_="broken")


def events_part(facts: RunFacts) -> Html:
    """The events as lanes over time, and a list of those that are not routine."""
    if not facts.run.events:
        return tag("p", "No event is recorded.", class_="soft")
    notable = [event for event in facts.run.events if event.kind not in QUIET or "flight" in event.detail]
    rows = [(seconds(event.time_s), f"{event.step:,}", event.kind.replace("_", " "), _detail(event)) for event in notable[:MAX_LISTED]]
    left = len(notable) - len(rows)
    caption = f"The first {len(rows)} of {len(notable):,}; events.jsonl has them all" if left > 0 else ""
    listed = table(("at", "step>", "what", "in words"), rows, "Events", caption=caption, class_="listed") if rows else None
    return joined(event_lanes(facts.run.events), listed)


def _detail(event: Event) -> str:
    text = event.detail.get("message")  # the key that the trainer writes
    if isinstance(text, str):
        return f"{text}. {calls}" if (calls := flight_words(event)) else text
    return ", ".join(_named(key, value) for key, value in event.detail.items())


def _named(key: str, value: object) -> str:
    """A detail of an event with its unit, which follows from its name."""
    if key == "price" and (rate := Rate.from_json(value)):
        return f"price {rate}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key.endswith("_s"):
        name = DETAILS.get(key, key.removesuffix("_s").replace("_", " "))
        return f"{name} {seconds(float(value))}"  # type: ignore[arg-type]
    words = f"{value:.6g}" if isinstance(value, float) else str(value)[:200]
    return f"{DETAILS.get(key, key.replace('_', ' '))} {words.replace('_', ' ') if key == 'cause' else words}"


def money_part(facts: RunFacts) -> Html:
    """Accelerator-hours by state, and their cost in money, energy, carbon and water."""
    ledger = facts.ledger
    total = sum(ledger.gpu_seconds.values()) or 1.0
    states = [(state, amount) for state, amount in ledger.gpu_seconds.items() if amount > 0]
    pieces = [(f"{state}: {hours(amount)} accelerator-hours", var(STATE_COLOURS[state]), amount) for state, amount in states]
    drawn = stacked([("accelerator-hours", pieces, f"{hours(total)} h")], total, "Accelerator-hours by what they were spent on")
    by_state = ledger.usd_by_state if ledger.usd is not None and ledger.usd >= 1 else None  # a few cents cannot be divided among the states
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
    right = tag("div", table(("", "value>", "how"), amount_rows(ledger), "Money, energy, carbon, water", class_="facts"))
    return joined(tag("div", left, right, class_="two"), note_list(_sentence(note) for note in ledger.notes))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
