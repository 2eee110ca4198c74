"""Curves over accelerator counts: weak and strong scaling with error bars, and the Pareto front of time against cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshwright.report.page.axes import Scale, log_ticks, logarithmic, padded, time_ticks
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, legend, svg, table, tag
from meshwright.units import seconds, usd

WIDTH, HEIGHT = 460.0, 300.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 18.0, 26.0, 46.0
MAX_LABELS = 12
LABEL_ROOM = 58.0
KIND_WORDS = {"weak": "weak scaling: batch grows with the machine", "strong": "strong scaling: the batch stays"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """A step at one number of accelerators."""

    num_accelerators: int
    step_s: float
    low_s: float  # 80 % interval
    high_s: float
    efficiency: float  # throughput per accelerator, relative to the smallest size of the same kind
    kind: str = "weak"  # or "strong"
    note: str = ""  # such as the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """A run at one number of accelerators, such that no other run is both faster and cheaper."""

    num_accelerators: int
    time_to_train_s: float
    cost_usd: float
    note: str = ""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What an axis shows: its name, how a value is written, and where ticks go."""

    name: str
    label: Callable[[float], str]
    ticks: Callable[[float, float], list[float]]


@dataclass(frozen=True, slots=True)
class Frame:
    """Two logarithmic axes and the box they span."""

    x: Scale
    y: Scale
    drawn: Html


def scaling_chart(points: Sequence[ScalingPoint]) -> Html:
    """Step time over accelerators with error bars, the ideal dashed, and the same numbers as a table."""
    curves = {kind: sorted((p for p in points if p.kind == kind), key=lambda p: p.num_accelerators) for kind in KIND_WORDS}
    curves = {kind: of_kind for kind, of_kind in curves.items() if of_kind}
    values = [value for p in points for value in (p.low_s, p.high_s)]
    values += [value for kind, of_kind in curves.items() for value in _ideal(of_kind, kind)]
    frame = _frame([float(p.num_accelerators) for p in points], values, COUNT, STEP)
    drawn = [_curve(frame, of_kind, kind) for kind, of_kind in curves.items()]
    drawing = svg(
        WIDTH, HEIGHT, "Step time over the number of accelerators, with 80 % intervals", frame.drawn, *drawn, class_="chart curve"
    )
    return joined(legend((var(kind), KIND_WORDS[kind]) for kind in curves), drawing, _scaling_table(points))


def _ideal(points: Sequence[ScalingPoint], kind: str) -> list[float]:
    """Step times if scaling from the smallest size were perfect."""
    first = points[0]
    return [first.step_s * (first.num_accelerators / p.num_accelerators if kind == "strong" else 1.0) for p in points]


def _curve(frame: Frame, points: Sequence[ScalingPoint], kind: str) -> Html:
    colour, ideal = var(kind), _ideal(points, kind)
    drawn = []
    at = [frame.x(float(p.num_accelerators)) for p in points]
    drawn.append(_line(list(zip(at, [frame.y(value) for value in ideal], strict=True)), colour, "4 3", 1.0))
    drawn.append(_line([(x, frame.y(p.step_s)) for x, p in zip(at, points, strict=True)], colour, None, 2.0))
    for x, p in zip(at, points, strict=True):
        low, high = frame.y(p.low_s), frame.y(p.high_s)
        drawn += [tag("line", x1=x, x2=x, y1=low, y2=high, stroke=colour, stroke_width=1.3)]
        drawn += [tag("line", x1=x - 4.0, x2=x + 4.0, y1=y, y2=y, stroke=colour, stroke_width=1.3) for y in (low, high)]
        title = f"{p.num_accelerators:,} accelerators: {seconds(p.step_s)}, efficiency {100 * p.efficiency:.1f} %. {p.note}".strip()
        drawn.append(tag("circle", tag("title", title), cx=x, cy=frame.y(p.step_s), r=4.0, fill=colour))
    return joined(*drawn)


def _scaling_table(points: Sequence[ScalingPoint]) -> Html:
    ordered = sorted(points, key=lambda p: (p.kind == "strong", p.num_accelerators))
    rows = [
        (
            p.kind,
            f"{p.num_accelerators:,}",
            seconds(p.step_s),
            f"{seconds(p.low_s)} \u2013 {seconds(p.high_s)}",
            f"{100 * p.efficiency:.1f}",
        )
        for p in ordered
    ]
    columns = ("scaling", "accelerators>", "step>", "80 % interval>", "efficiency %>")
    caption = "Dashed: nothing lost. Efficiency is throughput per accelerator, of the smallest machine of its kind."
    return _noted(columns, rows, [p.note for p in ordered], "Scaling", caption)


def _noted(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], notes: Sequence[str], label: str, caption: str) -> Html:
    """The table, with a column of notes if there are any."""
    if not any(notes):
        return table(columns, rows, label, caption=caption)
    return table((*columns, "note"), [(*row, note) for row, note in zip(rows, notes, strict=True)], label, caption=caption, class_="noted")


def pareto_chart(points: Sequence[ParetoPoint], here: ParetoPoint | None = None) -> Html:
    """Cost over time to train, one point per number of accelerators; a ring marks the plan itself."""
    ordered = sorted(points, key=lambda p: p.time_to_train_s)
    every = [*ordered, *([here] if here else [])]
    frame = _frame([p.time_to_train_s for p in every], [p.cost_usd for p in every], RUN, COST)
    drawn = [_line([(frame.x(p.time_to_train_s), frame.y(p.cost_usd)) for p in ordered], var("accent"), None, 2.0)]
    spacing = math.ceil(len(ordered) / MAX_LABELS)
    drawn += [_pareto_point(frame, p, label=number % spacing == 0) for number, p in enumerate(ordered)]
    if here:
        place = {"cx": frame.x(here.time_to_train_s), "cy": frame.y(here.cost_usd), "r": 7.5}
        drawn.append(tag("circle", tag("title", "this plan"), **place, fill="none", stroke=var("ink"), stroke_width=1.6))
    drawing = svg(
        WIDTH, HEIGHT, "Cost over time to train: the Pareto front over numbers of accelerators", frame.drawn, *drawn, class_="chart curve"
    )
    rows = [(f"{p.num_accelerators:,}", seconds(p.time_to_train_s), usd(p.cost_usd)) for p in ordered]
    caption = "Numbers in the chart are accelerators" + ("; the ring is this plan." if here else ".")
    listed = _noted(("accelerators>", "time to train>", "cost>"), rows, [p.note for p in ordered], "Pareto front", caption)
    return joined(legend([(var("accent"), "the best plan of each number of accelerators")]), drawing, listed)


def _pareto_point(frame: Frame, point: ParetoPoint, *, label: bool) -> Html:
    x, y = frame.x(point.time_to_train_s), frame.y(point.cost_usd)
    title = f"{point.num_accelerators:,} accelerators: {seconds(point.time_to_train_s)}, {usd(point.cost_usd)}. {point.note}".strip()
    dot = tag("circle", tag("title", title), cx=x, cy=y, r=4.0, fill=var("accent"))
    name = f"{point.num_accelerators:,}"
    beside, anchor = (x + 7.0, "start") if x + 7.0 + 9.0 * len(name) < WIDTH - RIGHT else (x + 4.0, "end")  # inside the frame
    text = tag("text", name, x=beside, y=y - 7.0, font_size=11, text_anchor=anchor, fill=var("soft")) if label else None
    return joined(dot, text)


def _line(points: Sequence[tuple[float, float]], colour: str, dash: str | None, width: float) -> Html:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return tag("polyline", points=path, fill="none", stroke=colour, stroke_width=width, stroke_dasharray=dash, stroke_linejoin="round")


def _frame(xs: Sequence[float], ys: Sequence[float], across: Quantity, up: Quantity) -> Frame:
    """Logarithmic axes with ticks around positive values."""
    x_ends, y_ends = padded(xs), padded(ys)
    x, y = logarithmic(*x_ends, LEFT, WIDTH - RIGHT), logarithmic(*y_ends, HEIGHT - BOTTOM, TOP)
    base = HEIGHT - BOTTOM
    drawn = [tag("rect", x=LEFT, y=TOP, width=WIDTH - LEFT - RIGHT, height=base - TOP, fill="none", stroke=var("line"))]
    for value in up.ticks(*y_ends):
        drawn.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), stroke=var("faint")))
        drawn.append(_label(up.label(value), LEFT - 6.0, y(value) + 4.0, "end"))
    for value in _apart(across.ticks(*x_ends), x):
        drawn.append(tag("line", x1=x(value), x2=x(value), y1=base, y2=base + 5.0, stroke=var("soft")))
        drawn.append(_label(across.label(value), x(value), base + 18.0, "middle"))
    drawn.append(_label(across.name, WIDTH - RIGHT, HEIGHT - 8.0, "end", "ink"))
    drawn.append(_label(up.name, LEFT, TOP - 9.0, "start", "ink"))
    return Frame(x, y, joined(*drawn))


def _apart(values: Sequence[float], x: Scale) -> list[float]:
    """The values that are far enough from the previous one for their labels to be readable."""
    kept: list[float] = []
    for value in values:
        if not kept or x(value) - x(kept[-1]) >= LABEL_ROOM:
            kept.append(value)
    return kept


def _label(words: str, x: float, y: float, anchor: str, colour: str = "soft") -> Html:
    return tag("text", words, x=x, y=y, text_anchor=anchor, font_size=12, fill=var(colour))


def _count(value: float) -> str:
    return f"{value:,.0f}"


COUNT = Quantity("accelerators", _count, log_ticks)
STEP = Quantity("step time", seconds, time_ticks)
RUN = Quantity("time to train", seconds, time_ticks)
COST = Quantity("cost", usd, log_ticks)
