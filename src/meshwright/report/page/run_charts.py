"""Drawings of runs: loss, step times and their spread, events, parts of the step as stacked bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from meshwright.record.entries import Event
from meshwright.report.facts import RunFacts
from meshwright.report.page.area import NUM_BUCKETS, Axis, Column, Plot, buckets, extremes, smoothed
from meshwright.report.page.axes import ticks
from meshwright.report.page.bars import bar
from meshwright.report.page.colours import run_colour, var
from meshwright.report.page.markup import Html, joined, legend, table, tag
from meshwright.units import DAY, HOUR, MINUTE, seconds

PERCENTILES = np.linspace(0.5, 99.5, 100)
MAX_DOTS = 60  # evaluations drawn
MAX_MARKS = 240  # events drawn in a lane, or beside steps
MAX_ARROWS = 40
MAX_SPECKS = 600  # slow steps drawn as points
SMOOTHED_SHARE = 0.02  # share of a run over which the line of the loss is averaged
LANES: Mapping[str, tuple[str, str]] = {  # kind of event -> its name, colour
    "start": ("start", "ink"),
    "resumed": ("resumed", "pp"),
    "evaluation": ("evaluation", "accent"),
    "checkpoint": ("checkpoint", "data"),
    "checkpoint_failed": ("failed checkpoint", "warn"),
    "slow_rank": ("slow rank", "dp"),
    "recovered_rank": ("recovered rank", "cp"),
    "slow_link": ("slow link", "dp"),
    "recovered_link": ("recovered link", "cp"),
    "stall": ("stall", "ep"),
    "dead_experts": ("dead experts", "ep"),
    "nan": ("not a number", "warn"),
    "damage": ("damage", "warn"),
    "incident": ("incident", "warn"),
    "replay": ("step done again", "warn"),
    "rebalanced": ("rebalanced", "dp"),
    "fault": ("fault", "warn"),
    "restart": ("restart", "pp"),
    "budget": ("budget", "warn"),
    "stopped": ("stopped", "ink"),
    "finished": ("finished", "ink"),
}


def compact(value: float) -> str:
    """A count in the short form of an axis: 12k, 1.5M."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"


def loss_chart(runs: Sequence[RunFacts], colours: Sequence[str]) -> Html:
    """Loss over samples: the steps, their running mean, the evaluations, and the target."""
    shown = [(facts, colour) for facts, colour in zip(runs, colours, strict=True) if has_loss(facts)]
    if not shown:
        return tag("p", "No loss is recorded: a simulated run computes times, not losses.", class_="soft")
    values = np.concatenate([_finite_losses(facts)[1] for facts, _ in shown])
    evaluated = [e.loss for facts, _ in shown for e in facts.evaluations if e.loss is not None]
    targets = {facts.run.header.target for facts, _ in shown if facts.run.header.target is not None}
    ends = np.array([*np.percentile(values, [0.2, 99.8]), *evaluated, *targets, values[-1]])
    room = 0.05 * float(np.ptp(ends)) or 0.1
    last = max(max(float(facts.run.records[-1].samples), *(float(e.samples) for e in facts.evaluations), 0.0) for facts, _ in shown)
    plot = Plot(
        Axis.linear(0.0, last, "samples", compact),
        Axis.linear(float(ends.min()) - room, float(ends.max()) + room, "loss", "{:g}".format),
    )
    layers = [layer for facts, colour in shown for layer in _loss_layers(plot, facts, colour, alone=len(shown) == 1)]
    marks = [mark for facts, colour in shown for mark in _evaluation_dots(plot, facts, colour)]
    marks += [plot.level(target, var("warn"), f"target {target:g}") for target in sorted(targets)]
    return plot.drawn(f"Loss over samples of {', '.join(facts.label for facts, _ in shown)}", layers, marks)


def has_loss(facts: RunFacts) -> bool:
    """Whether any step has a loss that is a number."""
    return bool(np.isfinite(facts.run.columns["loss"]).any())


def _finite_losses(facts: RunFacts) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    losses = facts.run.columns["loss"]
    known = np.isfinite(losses)
    return facts.run.columns["samples"][known].astype(np.float64), losses[known]


def _loss_layers(plot: Plot, facts: RunFacts, colour: str, *, alone: bool) -> Iterable[Html]:
    xs, ys = _finite_losses(facts)
    if alone:
        yield plot.line(*extremes(xs, ys), colour, 1.0, 0.35)
    width = max(round(SMOOTHED_SHARE * len(ys)), 1)
    mean = smoothed(ys, width)
    every = max(len(xs) // 400, 1)
    yield plot.line(np.append(xs[:-1:every], xs[-1]), np.append(mean[:-1:every], mean[-1]), colour, 2.0)


def _evaluation_dots(plot: Plot, facts: RunFacts, colour: str) -> Iterable[Html]:
    known = [e for e in facts.evaluations if e.loss is not None]
    for evaluation in known[:: math.ceil(len(known) / MAX_DOTS) or 1]:
        assert evaluation.loss is not None
        title = f"{facts.label}: evaluation after {evaluation.samples:,} samples, loss {evaluation.loss:.4f}"
        yield plot.dot(evaluation.samples, evaluation.loss, colour, title, 4.0)


def step_chart(facts: RunFacts) -> Html:
    """Step time over steps: a line if there are few steps; if there are many, the median of neighbours and each slow step."""
    xs, ys = facts.run.columns["step"].astype(np.float64), facts.run.columns["step_s"]
    median_s, predicted_s = facts.summary.median_step_s, facts.plan.step_s if facts.plan else None
    low, high = float(np.percentile(ys, 0.5)), float(np.percentile(facts.steady_s, 99.5))
    if predicted_s and 0.8 * low < predicted_s < 1.25 * high:
        low, high = min(low, predicted_s), max(high, predicted_s)
    room = max(0.15 * (high - low), 0.005 * median_s)
    low, top = max(low - room, 0.0), high + room
    plot = Plot(Axis.linear(float(xs[0]), float(xs[-1]), "step", compact), _time_axis(low, top, "step time"))
    above = np.flatnonzero(ys > top)
    levels = [(var("soft"), f"median {seconds(median_s)}", median_s)]
    if predicted_s and low < predicted_s < top:
        levels.append((var("dp"), f"predicted {seconds(predicted_s)}", predicted_s))
    marks = [plot.level(value_s, colour, words, is_written=False) for colour, words, value_s in levels]  # text in the frame hides steps
    for number in above[np.argsort(-ys[above])][:MAX_ARROWS].tolist():
        marks.append(plot.arrow(float(xs[number]), var("warn"), f"step {xs[number]:.0f}: {seconds(float(ys[number]))}"))
    many = len(xs) > NUM_BUCKETS
    layers = _many_steps(plot, xs, ys, top) if many else [plot.line(xs, np.minimum(ys, top), var("accent"), 1.4)]
    drawn = plot.drawn(f"Step time over the steps of {facts.label}", layers, marks)
    text = "Line: median of neighbouring steps; pale: eight in ten of them; points: the slowest. " if many else ""
    text += f"{len(above):,} of {len(ys):,} steps lie above the frame (\u25b4)." if len(above) else ""
    key = legend((colour, f"{words} (dashed)") for colour, words, _ in levels)
    return joined(drawn, key, tag("p", text, class_="small") if text else None)


def _many_steps(plot: Plot, xs: Column, ys: Column, top: float) -> list[Html]:
    middle, low, median, high = buckets(xs, ys)
    slow = np.sort(np.argsort(-ys)[:MAX_SPECKS])
    slow = slow[ys[slow] <= top]
    specks = plot.specks(xs[slow], ys[slow], var("accent"), 2.5, 0.6)
    return [specks, plot.band(middle, low, np.minimum(high, top), var("accent"), 0.3), plot.line(middle, median, var("accent"), 1.6)]


def _time_axis(low_s: float, high_s: float, name: str) -> Axis:
    """An axis of durations in one unit, with as many digits as its ticks need."""
    unit_s, unit = (1e-6, "us") if high_s < 1e-3 else (1e-3, "ms") if high_s < 1.0 else (1.0, "s") if high_s < 120.0 else (MINUTE, "min")
    return Axis.linear(low_s, high_s, f"{name}, {unit}", lambda value: f"{round(value / unit_s, 9):g}")


def spread_chart(runs: Sequence[RunFacts], colours: Sequence[str]) -> Html:
    """For each run, the share of steady steps that are at most so many per cent longer than its median."""
    curves = [100 * (np.percentile(facts.steady_s, PERCENTILES) / facts.summary.median_step_s - 1) for facts in runs]
    low = min(float(curve[2]) for curve in curves)
    high = max(float(np.percentile(curve, 97.5)) for curve in curves)
    room = 0.08 * (high - low) or 0.1
    plot = Plot(
        Axis.linear(low - room, high + room, "per cent beyond the run's own median", lambda value: f"{value:+g}" if value else "0"),
        Axis.linear(0.0, 100.0, "share of steady steps that take no longer, %", "{:g}".format, 4),
    )
    layers = []
    for curve, colour in zip(curves, colours, strict=True):
        inside = (curve >= low - room) & (curve <= high + room)
        layers.append(plot.line(curve[inside], PERCENTILES[inside], colour, 2.0))
    return plot.drawn("How step times spread around their median", layers, [plot.upright(0.0, var("soft"), "the median")])


def box_table(runs: Sequence[RunFacts], colours: Sequence[str]) -> Html:
    """Step times of every run on one scale: a line from the 1st to the 99th percentile, a box around the middle half."""
    marks = [np.percentile(facts.steady_s, [1, 25, 50, 75, 99]) for facts in runs]
    full = 1.04 * max(float(five[4]) for five in marks)
    least = min(float(five[0]) for five in marks)
    start = 0.0 if least < 0.5 * full else max(least - 0.3 * (full - least), 0.0)
    rows = []
    for facts, colour, five in zip(runs, colours, marks, strict=True):
        p1, p25, p50, p75, p99 = ((float(value) - start) / (full - start) for value in five)
        whisker = tag("line", x1=_pct(p1), x2=_pct(p99), y1=8, y2=8, stroke=colour, stroke_width=2)
        middle = tag("line", x1=_pct(p50), x2=_pct(p50), y1=1, y2=15, stroke=var("ink"), stroke_width=2)
        rows.append((_named(facts.label, colour), bar([(p25, p75, colour)], whisker, middle), seconds(facts.summary.median_step_s)))
    cut = f"; the scale starts at {seconds(start)}" if start else ""
    caption = f"Line: 1st to 99th of a hundred steady steps; box: the middle half; tick: median{cut}"
    return table(("run", "step time", "median>"), rows, "Step times of the runs", caption=caption, class_="bars wide-bar")


def _pct(share: float) -> str:
    return f"{100 * share:.3f}%"


def _named(label: str, colour: str) -> Html:
    return tag("span", tag("i", style=f"background:{colour}"), label, class_="key")


def stacked(rows: Sequence[tuple[str, Sequence[tuple[str, str, float]], str]], full: float, label: str) -> Html:
    """Bars below each other on one scale: (name, its parts as (what, colour, amount), the total as text)."""
    drawn = []
    for name, parts, total in rows:
        spans, done = [], 0.0
        for what, colour, amount in parts:
            width = max(amount, 0.0) / full
            title = tag("title", what)
            place: dict[str, str | float | None] = {"x": _pct(done), "width": _pct(max(width - 0.0015, 0.0005)), "y": 0, "height": 26}
            spans.append(tag("rect", title, **place, fill=colour))
            done += width
        picture = tag("svg", *spans, class_="fixed", width="100%", height=26, aria_hidden="true")
        head = tag("p", tag("span", name), tag("b", total), class_="stack-name")
        drawn.append(tag("div", head, picture, class_="stack"))
    return tag("div", *drawn, role="img", aria_label=label)


def event_lanes(events: Sequence[Event]) -> Html:
    """Events over the time of the run, one lane for each kind."""
    end_s = max((event.time_s for event in events), default=0.0) or 1.0
    unit_s, unit = (
        (1.0, "s") if end_s < 2 * MINUTE else (MINUTE, "min") if end_s < 2 * HOUR else (HOUR, "h") if end_s < 3 * DAY else (DAY, "days")
    )
    lanes = []
    for kind in [*LANES, *dict.fromkeys(e.kind for e in events if e.kind not in LANES)]:
        times = [event.time_s for event in events if event.kind == kind]
        if times:
            name, colour = LANES.get(kind, (kind.replace("_", " "), "overhead"))
            lanes.append(_lane(name, var(colour), times, end_s))
    marks = ticks(0.0, end_s / unit_s, 6)
    words = [
        tag(
            "text",
            f"{mark:g}",
            x=_pct(mark * unit_s / end_s),
            y=12,
            text_anchor="start" if not mark else "middle",
            fill=var("soft"),
            font_size=12,
        )
        for mark in marks
        if mark * unit_s / end_s < 0.95
    ]
    words.append(tag("text", unit, x="100%", y=12, text_anchor="end", fill=var("soft"), font_size=12))
    axis = tag("div", tag("span"), tag("svg", *words, class_="fixed", width="100%", height=16, aria_hidden="true"), class_="lane")
    return tag("div", *lanes, axis, class_="lanes", role="img", aria_label="Events over the time of the run")


def _lane(name: str, colour: str, times: Sequence[float], end_s: float) -> Html:
    places = sorted({round(MAX_MARKS * max(time_s, 0.0) / end_s) for time_s in times})
    base = tag("line", x1="0%", x2="100%", y1=10, y2=10, stroke=var("line"))
    marks = [tag("line", x1=_pct(p / MAX_MARKS), x2=_pct(p / MAX_MARKS), y1=3, y2=17, stroke=colour, stroke_width=2.5) for p in places]
    picture = tag("svg", base, *marks, class_="fixed", width="100%", height=20, aria_hidden="true")
    return tag("div", tag("span", f"{name} ", tag("b", f"{len(times):,}")), picture, class_="lane")


def run_legend(runs: Sequence[RunFacts]) -> Html:
    """Which colour is which run."""
    return legend((run_colour(number), facts.label) for number, facts in enumerate(runs))
