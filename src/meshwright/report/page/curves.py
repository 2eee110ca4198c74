"""Curves over accelerator counts: weak and strong scaling with error bars, and the Pareto front of time against cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwright.report.page.axes import Scale, log_ticks, logarithmic, padded
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, legend, svg, table, tag
from meshwright.units import seconds, usd

WIDTH, HEIGHT = 520.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 66.0, 18.0, 14.0, 46.0
KIND_WORDS = {"weak": "weak scaling: batch grows with the machine", "strong": "strong scaling: the batch stays"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """A step at one number of accelerators."""

    num_accelerators: int
    step_time_s: float
    low_s: float  # 80 % interval
    high_s: float
    efficiency: float  # throughput per accelerator, of that at the smallest number of its kind
    kind: str = "weak"  # or "strong"
    note: str = ""  # such as the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A run at one number of accelerators: none is faster for less."""

    num_accelerators: int
    time_to_train_s: float
    cost_usd: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """Two logarithmic axes and the box they span."""

    x: Scale
    y: Scale
    drawn: Html = field(default=Html(""))


# -- scaling --------------------------------------------------------------------------------------------


def scaling_chart(points: Sequence[ScalingPoint]) -> Html:
    """Step time over accelerators with error bars, the ideal dashed, and the same numbers as a table."""
    values = [value for p in points for value in (p.low_s, p.high_s, p.step_time_s)]
    frame = _frame([float(p.num_accelerators) for p in points], values, "accelerators", "step time", seconds)
    kinds = [kind for kind in KIND_WORDS if any(p.kind == kind for p in points)]
    curves = [_curve(frame, sorted((p for p in points if p.kind == kind), key=lambda p: p.num_accelerators), kind) for kind in kinds]
    drawing = svg(WIDTH, HEIGHT, "Step time over the number of accelerators, with 80 % intervals", frame.drawn, *curves)
    return joined(legend((var(kind), KIND_WORDS[kind]) for kind in kinds), drawing, _scaling_table(points))


def _curve(frame: Frame, points: Sequence[ScalingPoint], kind: str) -> Html:
    colour, first = var(kind), points[0]
    drawn = []
    ideal = [first.step_time_s * (first.num_accelerators / p.num_accelerators if kind == "strong" else 1.0) for p in points]
    at = [frame.x(float(p.num_accelerators)) for p in points]
    drawn.append(_line(list(zip(at, [frame.y(value) for value in ideal], strict=True)), colour, "4 3", 1.0))
    drawn.append(_line([(x, frame.y(p.step_time_s)) for x, p in zip(at, points, strict=True)], colour, None, 2.0))
    for x, p in zip(at, points, strict=True):
        low, high = frame.y(p.low_s), frame.y(p.high_s)
        drawn += [tag("line", x1=x, x2=x, y1=low, y2=high, stroke=colour, stroke_width=1.3)]
        drawn += [tag("line", x1=x - 4.0, x2=x + 4.0, y1=y, y2=y, stroke=colour, stroke_width=1.3) for y in (low, high)]
        title = f"{p.num_accelerators:,} accelerators: {seconds(p.step_time_s)}, efficiency {100 * p.efficiency:.1f} %. {p.note}".strip()
        drawn.append(tag("circle", tag("title", title), cx=x, cy=frame.y(p.step_time_s), r=4.0, fill=colour))
    return joined(*drawn)


def _scaling_table(points: Sequence[ScalingPoint]) -> Html:
    rows = [
        (p.kind, f"{p.num_accelerators:,}", seconds(p.step_time_s), f"{seconds(p.low_s)} \u2013 {seconds(p.high_s)}", f"{100 * p.efficiency:.1f}", p.note)
        for p in sorted(points, key=lambda p: (p.kind == "strong", p.num_accelerators))
    ]
    return table(("scaling", "accelerators>", "step>", "80 % interval>", "efficiency %>", "layout"), rows, "Scaling")


# -- Pareto ---------------------------------------------------------------------------------------------


def pareto_chart(points: Sequence[ParetoPoint], here: ParetoPoint | None = None) -> Html:
    """Cost over time to train, a point per number of accelerators; the plan itself is ringed."""
    ordered = sorted(points, key=lambda p: p.time_to_train_s)
    every = [*ordered, *([here] if here else [])]
    frame = _frame([p.time_to_train_s for p in every], [p.cost_usd for p in every], "time to train", "cost", usd, seconds)
    path = [(frame.x(p.time_to_train_s), frame.y(p.cost_usd)) for p in ordered]
    drawn = [_line(path, var("accent"), None, 2.0)]
    drawn += [_pareto_point(frame, p, label=len(ordered) <= 12 or not i % math.ceil(len(ordered) / 12)) for i, p in enumerate(ordered)]
    if here:
        drawn.append(
            tag("circle", tag("title", "this plan"), cx=frame.x(here.time_to_train_s), cy=frame.y(here.cost_usd), r=7.5, fill="none", stroke=var("ink"), stroke_width=1.6)
        )
    entries = [(var("accent"), "fastest plan of a number of accelerators")]
    drawing = svg(WIDTH, HEIGHT, "Cost over time to train: the Pareto front over numbers of accelerators", frame.drawn, *drawn)
    rows = [(f"{p.num_accelerators:,}", seconds(p.time_to_train_s), usd(p.cost_usd), p.note) for p in ordered]
    ring = tag("p", "Ringed: this plan.", class_="small") if here else None
    return joined(legend(entries), drawing, ring, table(("accelerators>", "time to train>", "cost>", "layout"), rows, "Pareto front"))


def _pareto_point(frame: Frame, point: ParetoPoint, *, label: bool) -> Html:
    x, y = frame.x(point.time_to_train_s), frame.y(point.cost_usd)
    title = f"{point.num_accelerators:,} accelerators: {seconds(point.time_to_train_s)}, {usd(point.cost_usd)}. {point.note}".strip()
    dot = tag("circle", tag("title", title), cx=x, cy=y, r=4.0, fill=var("accent"))
    text = tag("text", f"{point.num_accelerators:,}", x=x + 7.0, y=y - 6.0, font_size=11, fill=var("soft")) if label else None
    return joined(dot, text)


# -- both -----------------------------------------------------------------------------------------------


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str | None, width: float) -> Html:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", points=path, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dash, stroke_linejoin="round")


def _frame(xs: Sequence[float], ys: Sequence[float], x_name: str, y_name: str, y_said: object, x_said: object = None) -> Frame:
    """Axes with ticks around positive values."""
    x_ends, y_ends = padded(xs), padded(ys)
    x = logarithmic(*x_ends, LEFT, WIDTH - RIGHT)
    y = logarithmic(*y_ends, HEIGHT - BOTTOM, TOP)
    said_y, said_x = (said if callable(said) else _count for said in (y_said, x_said))
    drawn = [tag("rect", x=LEFT, y=TOP, width=WIDTH - LEFT - RIGHT, height=HEIGHT - TOP - BOTTOM, fill="none", stroke=var("line"))]
    for value in log_ticks(*y_ends):
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), stroke=var("faint")))
        drawn.append(tag("text", said_y(value), x=LEFT - 6.0, y=y(value) + 4.0, text_anchor="end", font_size=11, fill=var("soft")))
    x_ticks = sorted(set(xs)) if x_said is None and len(set(xs)) <= 7 else log_ticks(*x_ends)
    for value in x_ticks:
        drawn.append(tag("line", x1=x(value), x2=x(value), y1=HEIGHT - BOTTOM, y2=HEIGHT - BOTTOM + 5.0, stroke=var("soft")))
        drawn.append(tag("text", said_x(value), x=x(value), y=HEIGHT - BOTTOM + 18.0, text_anchor="middle", font_size=11, fill=var("soft")))
    drawn.append(tag("text", x_name, x=WIDTH - RIGHT, y=HEIGHT - 8.0, text_anchor="end", font_size=12, fill=var("ink")))
    drawn.append(tag("text", y_name, x=LEFT + 8.0, y=TOP + 16.0, font_size=12, fill=var("ink")))
    return Frame(x, y, joined(*drawn))


def _count(value: float) -> str:
    return f"{value:,.0f}"
