"""A plan as one page that stands alone: HTML with its style and its drawings inside, no script and nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from meshwright.plan.plan import Plan
from meshwright.predict.outcome import Outcome, Spread, mfu_said
from meshwright.predict.placement import tiers_of
from meshwright.predict.software import Software
from meshwright.record.entries import PART_NAMES
from meshwright.report.page import assumptions
from meshwright.report.page.assumptions import Assumption
from meshwright.report.page.bars import axes_table, changes_table, memory_table, waterfall
from meshwright.report.page.colours import var
from meshwright.report.page.curves import ParetoPoint, ScalingPoint, pareto_chart, scaling_chart
from meshwright.report.page.facts import Facts, facts_of
from meshwright.report.page.markup import Html, joined, table, tag
from meshwright.report.page.rack import rack_picture
from meshwright.report.page.shell import document, kg, litres, section, tile, write_page
from meshwright.report.page.timeline import timeline_picture
from meshwright.units import energy, gib, seconds, si, usd


def write_plan_page(
    plan: Plan,
    path: Path,
    *,
    stack: Software | None = None,
    scaling: Sequence[ScalingPoint] = (),
    pareto: Sequence[ParetoPoint] = (),
    runners_up: Sequence[Plan] = (),
    takes: Outcome | None = None,
) -> None:
    """Write the page. `takes` is the outcome to show, where it was reckoned with prices or a region of the user's choice."""
    page = plan_page(plan, stack=stack, scaling=scaling, pareto=pareto, runners_up=runners_up, takes=takes)
    write_page(path, page)


def plan_page(
    plan: Plan,
    *,
    stack: Software | None = None,
    scaling: Sequence[ScalingPoint] = (),
    pareto: Sequence[ParetoPoint] = (),
    runners_up: Sequence[Plan] = (),
    takes: Outcome | None = None,
) -> str:
    """The page as HTML."""
    facts = facts_of(plan, stack, takes)
    sections = (
        _answer(facts),
        _mapping(facts),
        _step(facts),
        _timeline(facts),
        section("memory", "Memory by stage", memory_table(facts)),
        _outlook(facts, scaling, pareto),
        _others(facts, runners_up),
        _assumptions(facts),
    )
    return document(f"{plan.name}: plan", _header(facts), sections, _footer(facts))


# -- the answer -----------------------------------------------------------------------------------------


def _header(facts: Facts) -> Html:
    plan = facts.plan
    model, workload, cluster = plan.model, plan.workload, plan.cluster
    size = si(float(model.num_parameters), "", 3).replace(" G", " B")
    said = (
        f"{size} parameters on {cluster.num_accelerators:,} {cluster.accelerator.name}, {workload.name}: {workload.global_batch:,} "
        f"sequences of {workload.seq_len:,} tokens a step, {workload.precision}, software {facts.stack.name}"
    )
    return tag("header", tag("p", "meshwright plan", class_="eyebrow"), tag("h1", plan.name), tag("p", said, class_="soft"), _chips(facts))


def _chips(facts: Facts) -> Html:
    """The layout: an axis a chip in its colour, then what else was chosen."""
    layout = facts.plan.layout
    degrees = [(axis, getattr(layout, axis)) for axis in ("tp", "cp", "pp", "dp", "ep") if axis != "ep" or layout.ep > 1]
    axes = (tag("span", f"{axis} {degree}", class_="chip axis", style=f"background:{var(axis)}") for axis, degree in degrees)
    return tag("p", axes, (tag("span", words, class_="chip") for words in _choices(facts)), class_="chips", aria_label="layout")


def _choices(facts: Facts) -> Iterator[str]:
    layout = facts.plan.layout
    if layout.pp > 1:
        yield f"{layout.vp} chunks a stage (vp)" if layout.vp > 1 else "one chunk a stage"
        yield "zero-bubble" if layout.schedule == "zero-bubble" else "interleaved 1F1B" if layout.vp > 1 else "1F1B"
    yield f"micro-batch {layout.micro_batch} x {facts.num_micro_batches:,}"
    yield f"ZeRO {layout.zero_stage}"
    yield f"recompute {layout.recompute}"
    if layout.cp > 1:
        yield f"context by {layout.cp_kind}"
    yield f"ranks {'-'.join(layout.order)}"
    if facts.plan.spares_per_domain:
        yield f"{facts.plan.spares_per_domain} spares a {facts.plan.cluster.tiers[0].name}"


def _answer(facts: Facts) -> Html:
    explanation = facts.explanation
    lead = [tag("p", _sentence(explanation.limit), class_="lead")]
    notes = [tag("ul", (tag("li", note) for note in facts.notes), class_="notes")] if facts.notes else []
    return section("answer", "The answer", tag("div", _tiles(facts), class_="tiles"), *lead, *notes)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _tiles(facts: Facts) -> Iterator[Html]:
    plan, takes, chip = facts.plan, facts.takes, facts.plan.cluster.accelerator
    steps = f"{takes.num_steps:,} steps" if takes.num_steps else ""
    price = takes.offer.price if takes.offer else None
    paid = f"{price.provider} {price.kind}, {usd(price.usd_per_accelerator_hour)} an accelerator and hour" if price else ""
    yield tile("Step time", seconds(plan.step_time_s), f"{seconds(plan.low_s)} \u2013 {seconds(plan.high_s)}, 80 % interval")
    yield _spread("Time to train", takes, takes.time_to_train_s, seconds, steps, "time_to_train")
    yield _spread("Cost", takes, takes.offer.cost_usd if takes.offer else None, usd, paid, "cost")
    yield _spread("Energy at the wall", takes, takes.energy_j, energy, f"{100 * takes.busy:.0f} % busy", "energy")
    yield _spread("Carbon", takes, takes.carbon_kg, kg, f"{takes.region.name}, {takes.region.grid_gco2e_per_kwh:.0f} g/kWh", "energy")
    yield _spread("Water on site", takes, takes.water_l, litres, f"{takes.facility.name}, {takes.facility.year}", "water")
    rate = f"{facts.tokens_per_s / plan.cluster.num_accelerators:,.0f} an accelerator"
    each = f"{rate}; MFU {mfu_said(facts.mfu)}, {plan.workload.precision}"
    yield tile("Tokens a second", si(facts.tokens_per_s, ""), each)
    full = f"of {gib(chip.memory_bytes)}: {100 * plan.peak_memory_bytes / chip.memory_bytes:.0f} % of {chip.name}"
    yield tile("Peak memory", gib(plan.peak_memory_bytes), full)


def _spread(label: str, takes: Outcome, spread: Spread | None, said: Callable[[float], str], remark: str, key: str) -> Html:
    """A tile of a quantity with its interval, or why it is not known."""
    if spread is None:
        return tile(label, "unknown", takes.unknown.get(key, "not stated"))
    between = spread.between(said, " \u2013 ")
    return tile(label, f"{takes.bound}{said(spread.value)}", f"{between}; {remark}" if remark else between)


# -- the mapping and the step ---------------------------------------------------------------------------


def _mapping(facts: Facts) -> Html:
    explanation = facts.explanation
    reasons = tag("ul", (tag("li", reason) for reason in explanation.reasons))
    carried = axes_table(explanation.axes) if explanation.axes else tag("p", "One accelerator: nothing is carried.")
    right = tag("div", reasons, _tiers(facts.plan))
    picture = tag("div", tag("div", rack_picture(facts.plan)), right, class_="picture")
    return section("mapping", "What stands where, and why", picture, carried)


def _tiers(plan: Plan) -> Html:
    """The network from the inside out, and which axes cross each tier."""
    rows, crossed = [], tiers_of(plan.layout, plan.cluster)  # a plan of an older release does not place its experts
    for tier in plan.cluster:
        crossing = [axis for axis, tiers in crossed.items() if tier.name in tiers]
        chips = joined(*(tag("b", f"{axis} ", style=f"color:{var(axis)}") for axis in crossing)) if crossing else "none"
        planes = f"{tier.num_planes}" if tier.num_planes > 1 else "1"
        rows.append(
            (tier.name, tier.link, f"{tier.num_accelerators:,}", si(tier.bytes_per_s, "B/s", 3), seconds(tier.latency_s), planes, chips)
        )
    columns = ("tier", "link", "accelerators>", "each way>", "latency>", "planes>", "crossed by")
    return table(columns, rows, "Network tiers", caption="The network, from the inside out")


def _step(facts: Facts) -> Html:
    left = tag("div", tag("h2", "Where the step goes", id="step"), waterfall(facts))
    right = tag("div", tag("h2", "What one change would buy"), changes_table(facts.explanation.changes))
    return tag("section", tag("div", left, right, class_="two"), aria_labelledby="step")


def _timeline(facts: Facts) -> Html:
    return section("timeline", "One step on the pipeline" if facts.plan.layout.pp > 1 else "One step", timeline_picture(facts.laid_out))


# -- other sizes, other layouts -------------------------------------------------------------------------


def _outlook(facts: Facts, scaling: Sequence[ScalingPoint], pareto: Sequence[ParetoPoint]) -> Html:
    boxes = []
    if scaling:
        boxes.append(tag("div", tag("h2", "Scaling"), scaling_chart(scaling)))
    if pareto:
        boxes.append(tag("div", tag("h2", "Time against cost"), pareto_chart(pareto, _here(facts))))
    if not boxes:
        return Html("")
    return tag("section", tag("div", *boxes, class_="two" if len(boxes) > 1 else None), aria_label="Scaling and cost")


def _here(facts: Facts) -> ParetoPoint | None:
    takes = facts.takes
    if takes.offer is None or takes.time_to_train_s is None:
        return None
    count = facts.plan.cluster.num_accelerators
    return ParetoPoint(num_accelerators=count, time_to_train_s=takes.time_to_train_s.value, cost_usd=takes.offer.cost_usd.value)


def _others(facts: Facts, runners_up: Sequence[Plan]) -> Html:
    if not runners_up:
        return Html("")
    best_s = facts.plan.step_time_s
    rows = [_other(plan, best_s) for plan in (facts.plan, *runners_up)]
    columns = ("layout", "order", "step>", "80 % interval>", "against this %>", "peak GiB>", "largest part beside compute")
    return section("others", "The runners-up", table(columns, rows, "Runners-up", caption="This plan, and the next best", class_="bars"))


def _other(plan: Plan, best_s: float) -> tuple[str, ...]:
    part, part_s = max(((part, s) for part, s in plan.parts_s.items() if part != "compute"), key=lambda item: item[1])
    return (
        plan.layout.degrees,
        "-".join(plan.layout.order),
        seconds(plan.step_time_s),
        f"{seconds(plan.low_s)} \u2013 {seconds(plan.high_s)}",
        f"{100 * (plan.step_time_s / best_s - 1):+.1f}",
        gib(plan.peak_memory_bytes).removesuffix(" GiB"),
        f"{PART_NAMES[part]}, {100 * part_s / plan.step_time_s:.1f} %",
    )


# -- assumptions ----------------------------------------------------------------------------------------


def _assumptions(facts: Facts) -> Html:
    tables = (
        _group("Looked up: model, machine, job, prices", "source", assumptions.looked_up(facts)),
        _group("Fitted on measured runs", "before the fit", assumptions.fitted(facts), assumptions.fitted_on()),
        _group("Chosen, each for a reason", "reason", assumptions.chosen()),
    )
    return section("assumptions", "Every assumption, with its source", tag("p", assumptions.evidence(facts), class_="lead"), *tables)


def _group(title: str, origin: str, rows: Sequence[Assumption], caption: str = "") -> Html:
    cells = [(row.what, row.value, row.origin) for row in rows]
    listed = table(("what", "value", origin), cells, title, caption=caption, class_="sources")
    return tag("details", tag("summary", f"{title} ({len(rows)})"), listed, open_="open")


def _footer(facts: Facts) -> Html:
    plan = facts.plan
    origin = f"Predicted by meshwright, plan version {plan.version}, layout {plan.layout}."
    said = f"{origin} Nothing on this page was measured unless it says so."
    return tag("footer", tag("p", said))
