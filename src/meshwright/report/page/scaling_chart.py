"""Efficiency over the number of accelerators, with intervals, as a chart and as a table with a sentence for each size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.report.page.area import Axis, Plot
from meshwright.report.page.axes import padded
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, legend, table, tag
from meshwright.report.scaling import KINDS, Scaling
from meshwright.report.tables import SCALING_COLUMNS, scaling_row


def scaling_part(series: Sequence[Scaling]) -> Html:
    """A drawing and a table for every series."""
    return joined(*(tag("div", _one(scaling), class_="two spaced") for scaling in series))


def _one(scaling: Scaling) -> Html:
    left = tag("div", legend([(var(scaling.kind), f"{scaling.kind}, {scaling.of}")]), _chart(scaling))
    title = KINDS[scaling.kind]
    listed = table(SCALING_COLUMNS, map(scaling_row, scaling.points), f"Scaling of {scaling.of}", caption=f"{title[:1].upper()}{title[1:]}")
    sentences = tag("ul", *(tag("li", point.text) for point in scaling.points[1:]))
    return joined(left, tag("div", listed, sentences))


def _chart(scaling: Scaling) -> Html:
    """Efficiency in per cent; a dashed line marks 100."""
    points, colour = scaling.points, var(scaling.kind)
    sizes = sorted({float(point.num_ranks) for point in points})
    values = [100 * value for p in points for value in (p.efficiency, p.low, p.high) if value is not None]
    room = max(0.15 * (max(*values, 100.0) - min(values)), 0.5)
    x = Axis.logarithmic(*padded(sizes), "accelerators", lambda value: f"{value:,.0f}", _apart(sizes))
    plot = Plot(x, Axis.linear(min(values) - room, max(*values, 100.0) + room, "efficiency, %", lambda value: f"{value:g}"))
    line = plot.line(np.array([p.num_ranks for p in points], dtype=np.float64), np.array([100 * p.efficiency for p in points]), colour, 2.0)
    marks = [plot.level(100.0, var("soft"), "nothing lost")]
    for point in points:
        if point.low is not None and point.high is not None:
            marks.append(plot.whisker(point.num_ranks, 100 * point.low, 100 * point.high, colour))
        title = f"{point.num_ranks:,} accelerators: {100 * point.efficiency:.2f} % ({', '.join(point.labels)})"
        marks.append(plot.dot(point.num_ranks, 100 * point.efficiency, colour, title, 4.0))
    return plot.drawn(f"Efficiency of {scaling.of} over accelerators, {scaling.kind} scaling", [line], marks)


def _apart(sizes: Sequence[float]) -> list[float]:
    """Sizes far enough apart for their labels; always the first and the last."""
    low, high = padded(sizes)
    kept = [sizes[0]]
    for size in sizes[1:]:
        share = np.log(size / kept[-1]) / np.log(high / low)
        if share >= 0.16:
            kept.append(size)
        elif size == sizes[-1] and len(kept) > 1:
            kept[-1] = size
    return kept
