"""A plan as one self-contained page: HTML with its style and its drawings inside, no script and nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from meshwright.layout import AXES
from meshwright.plan.explain import Explanation, explain
from meshwright.plan.noise import plan_noise
from meshwright.plan.plan import VERSION, plan_of
from meshwright.plan.stack import runs_on
from meshwright.plan.trace import LaidOut
from meshwright.predict.forecast import Forecast
from meshwright.predict.outcome import Outcome, Spread
from meshwright.record.entries import PART_NAMES
from meshwright.report.page import assumptions
from meshwright.report.page.assumptions import Assumption
from meshwright.report.page.bars import axes_table, changes_table, memory_table, waterfall
from meshwright.report.page.colours import var
from meshwright.report.page.curves import ParetoPoint, ScalingPoint, pareto_chart, scaling_chart
from meshwright.report.page.markup import Html, joined, table, tag
from meshwright.report.page.rack import rack_picture
from meshwright.report.page.shell import document, section, tile, write_page
from meshwright.report.page.timeline import timeline_picture
from meshwright.say.forecast import interruptions_text, mfu_text, price_text
from meshwright.units import carbon, energy, gib, per_cent, seconds, si, usd, water


def write_plan_page(
    forecast: Forecast,
    path: Path,
    *,
    scaling: Sequence[ScalingPoint] = (),
    pareto: Sequence[ParetoPoint] = (),
    runners_up: Sequence[Forecast] = (),
) -> None:
    """Write the page of a forecast."""
    write_page(path, plan_page(forecast, scaling=scaling, pareto=pareto, runners_up=runners_up))


def plan_page(
    forecast: Forecast,
    *,
    scaling: Sequence[ScalingPoint] = (),
    pareto: Sequence[ParetoPoint] = (),
    runners_up: Sequence[Forecast] = (),
) -> str:
    """The page as HTML."""
    why = explain(forecast)
    sections = (
        _answer(forecast, why),
        _mapping(forecast, why),
        _step(forecast, why),
        _timeline(forecast),
        section("memory", "Memory by stage", memory_table(forecast)),
        _outlook(forecast, scaling, pareto),
        _others(forecast, runners_up),
        _assumptions(forecast),
    )
    return document(f"{forecast.job.name}: plan", _header(forecast), sections, _footer(forecast))


def _header(forecast: Forecast) -> Html:
    job = forecast.job
    model, workload, cluster = job.model, job.workload, job.cluster
    size = si(float(model.num_parameters), "", 3).replace(" G", " B")
    summary = (
        f"{size} parameters on {cluster.num_accelerators:,} {cluster.accelerator.name}, {workload.name}: {workload.global_batch:,} "
        f"sequences of {workload.seq_len:,} tokens per step, {workload.precision}, software {job.software.name}"
    )
    return tag(
        "header", tag("p", "meshwright plan", class_="eyebrow"), tag("h1", job.name), tag("p", summary, class_="soft"), _chips(forecast)
    )


def _chips(forecast: Forecast) -> Html:
    """The layout: a chip for each axis in its colour, then the other choices."""
    layout = forecast.layout
    degrees = [(axis, getattr(layout, axis)) for axis in (*AXES, "ep", "etp") if axis in AXES or getattr(layout, axis) > 1]
    axes = (tag("span", f"{axis} {degree}", class_="chip axis", style=f"background:{var(axis)}") for axis, degree in degrees)
    return tag("p", axes, (tag("span", words, class_="chip") for words in _choices(forecast)), class_="chips", aria_label="layout")


def _choices(forecast: Forecast) -> Iterator[str]:
    layout = forecast.layout
    if layout.pp > 1:
        yield f"{layout.vp} chunks per stage (vp)" if layout.vp > 1 else "one chunk per stage"
        yield "zero-bubble" if layout.schedule == "zero-bubble" else "interleaved 1F1B" if layout.vp > 1 else "1F1B"
    yield f"micro-batch {layout.micro_batch} x {forecast.num_micro_batches:,}"
    yield f"ZeRO {layout.zero_stage}"
    yield f"recompute {layout.recompute}"
    if layout.cp > 1:
        yield f"context by {layout.cp_kind}"
    yield f"ranks {'-'.join(layout.order)}"
    inner = forecast.job.cluster.tiers[0]
    if inner.num_installed > inner.num_accelerators:
        yield f"{inner.num_installed - inner.num_accelerators} spares per {inner.name}"


def _answer(forecast: Forecast, why: Explanation) -> Html:
    lead = [tag("p", _sentence(why.limit), class_="lead")]
    notes = [tag("ul", (tag("li", note) for note in forecast.notes), class_="notes")] if forecast.notes else []
    return section("answer", "The answer", tag("div", _tiles(forecast), class_="tiles"), *lead, *notes)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _tiles(forecast: Forecast) -> Iterator[Html]:
    whole, job, chip = forecast.outcome, forecast.job, forecast.job.cluster.accelerator
    low_s, high_s = forecast.interval
    steps = f"{whole.num_steps:,} steps" if whole.num_steps else ""
    paid = price_text(whole.offer) if whole.offer else ""
    yield tile("Step time", seconds(forecast.step_s), f"{seconds(low_s)} \u2013 {seconds(high_s)}, 80 % interval")
    yield _spread("Time to train", whole, whole.time_to_train_s, seconds, steps, "time_to_train")
    if whole.interruptions and whole.time_to_train_s:
        yield tile("Goodput", f"{100 * whole.interruptions.goodput:.1f} %", "; ".join(interruptions_text(whole)))
    yield _spread("Cost", whole, forecast.cost, usd, paid, "cost")
    yield _spread(
        "Energy at the wall", whole, whole.energy_j, energy, "" if whole.busy is None else f"{100 * whole.busy:.0f} % busy", "energy"
    )
    yield _spread("Carbon", whole, whole.carbon_kg, carbon, f"{whole.region.name}, {whole.region.grid_gco2e_per_kwh:.0f} g/kWh", "energy")
    yield _spread("Water on site", whole, whole.water_l, water, f"{whole.facility.name}, {whole.facility.year}", "water")
    each = f"{forecast.tokens_per_s_per_gpu:,.0f} per accelerator; MFU {mfu_text(forecast.mfu)}, {job.workload.precision}"
    yield tile("Tokens per second", si(forecast.tokens_per_s, ""), each)
    full = f"of {gib(chip.room_bytes)}: {100 * forecast.peak_memory_bytes / chip.room_bytes:.0f} % of {chip.name}"
    yield tile("Peak memory", gib(forecast.peak_memory_bytes), full)


def _spread(label: str, whole: Outcome, spread: Spread | None, shown: Callable[[float], str], remark: str, key: str) -> Html:
    """A tile with a quantity and its interval, or with the reason why it is unknown."""
    if spread is None:
        return tile(label, "unknown", whole.unknown.get(key, "not stated"))
    between = f"no upper end, {shown(spread.value)} at the predicted step" if whole.is_lower_bound else spread.between(shown, " \u2013 ")
    return tile(label, whole.words(spread, shown), f"{between}; {remark}" if remark else between)


def _mapping(forecast: Forecast, why: Explanation) -> Html:
    reasons = tag("ul", (tag("li", reason) for reason in why.reasons))
    carried = axes_table(why.axes) if why.axes else tag("p", "One accelerator: no communication.")
    right = tag("div", reasons, _tiers(forecast))
    picture = tag("div", tag("div", rack_picture(plan_of(forecast))), right, class_="picture")
    return section("mapping", "What is where, and why", picture, carried)


def _tiers(forecast: Forecast) -> Html:
    """The network from the inside out, and which axes cross each tier."""
    rows = []
    for tier in forecast.job.cluster:
        crossing = [axis for axis, tiers in forecast.placement.items() if tier.name in tiers]
        chips = joined(*(tag("b", f"{axis} ", style=f"color:{var(axis)}") for axis in crossing)) if crossing else "none"
        planes = f"{tier.num_planes}" if tier.num_planes > 1 else "1"
        rows.append(
            (tier.name, tier.link, f"{tier.num_accelerators:,}", si(tier.bytes_per_s, "B/s", 3), seconds(tier.latency_s), planes, chips)
        )
    columns = ("tier", "link", "accelerators>", "each way>", "latency>", "planes>", "crossed by")
    return table(columns, rows, "Network tiers", caption="The network, from the inside out")


def _step(forecast: Forecast, why: Explanation) -> Html:
    left = tag("div", tag("h2", "Where the step goes", id="step"), waterfall(forecast))
    right = tag("div", tag("h2", "What one change would gain"), changes_table(why.changes))
    return tag("section", tag("div", left, right, class_="two"), aria_labelledby="step")


def _timeline(forecast: Forecast) -> Html:
    return section("timeline", "One step on the pipeline" if forecast.layout.pp > 1 else "One step", timeline_picture(LaidOut.of(forecast)))


def _outlook(forecast: Forecast, scaling: Sequence[ScalingPoint], pareto: Sequence[ParetoPoint]) -> Html:
    boxes = []
    if scaling:
        boxes.append(tag("div", tag("h2", "Scaling"), scaling_chart(scaling)))
    if pareto:
        boxes.append(tag("div", tag("h2", "Time against cost"), pareto_chart(pareto, _here(forecast))))
    if not boxes:
        return Html("")
    return tag("section", tag("div", *boxes, class_="two" if len(boxes) > 1 else None), aria_label="Scaling and cost")


def _here(forecast: Forecast) -> ParetoPoint | None:
    time_s, cost = forecast.time_to_train, forecast.cost
    if time_s is None or cost is None:
        return None
    return ParetoPoint(num_accelerators=forecast.job.num_accelerators, time_to_train_s=time_s.value, cost_usd=cost.value)


def _others(forecast: Forecast, runners_up: Sequence[Forecast]) -> Html:
    if not runners_up:
        return Html("")
    rows = [_other(one, forecast.step_s) for one in (forecast, *runners_up)]
    noise = per_cent(plan_noise())
    caption = f"This plan, and the next best; steps less than {noise} apart are equal, since a predicted difference is wrong by as much"
    columns = ("layout", "order", "step>", "80 % interval>", "against this %>", "peak GiB>", "runs on", "largest part after compute")
    return section("others", "The runners-up", table(columns, rows, "Runners-up", caption=caption, class_="bars"))


def _other(one: Forecast, best_s: float) -> tuple[str, ...]:
    part = max((part for part in one.parts if part != "compute"), key=lambda name: one.parts[name])
    return (
        one.layout.degrees,
        "-".join(one.layout.order),
        seconds(one.step_s),
        f"{seconds(one.interval.low_s)} \u2013 {seconds(one.interval.high_s)}",
        f"{100 * (one.step_s / best_s - 1):+.1f}",
        gib(one.peak_memory_bytes).removesuffix(" GiB"),
        ", ".join(runs_on(one.job, one.layout)) or "none known",
        f"{PART_NAMES[part]}, {100 * one.share(part):.1f} %",
    )


def _assumptions(forecast: Forecast) -> Html:
    tables = (
        _group("Looked up: model, machine, job, prices", "source", assumptions.looked_up(forecast)),
        _group("Fitted on measured runs", "before the fit", assumptions.fitted(forecast), assumptions.fitted_on()),
        _group("Chosen, each for a reason", "reason", assumptions.chosen()),
    )
    return section("assumptions", "Every assumption, with its source", tag("p", assumptions.evidence(forecast), class_="lead"), *tables)


def _group(title: str, origin: str, rows: Sequence[Assumption], caption: str = "") -> Html:
    cells = [(row.what, row.value, row.origin) for row in rows]
    listed = table(("what", "value", origin), cells, title, caption=caption, class_="sources")
    return tag("details", tag("summary", f"{title} ({len(rows)})"), listed, open_="open")


def _footer(forecast: Forecast) -> Html:
    origin = f"Predicted by meshwright, plan version {VERSION}, layout {forecast.layout}."
    return tag("footer", tag("p", f"{origin} Nothing on this page was measured unless it says so."))
