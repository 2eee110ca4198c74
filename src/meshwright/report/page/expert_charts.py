"""Drawings of routers: loads of experts over the run as heat maps, and balance loss, entropy and peaks as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from meshwright.record.entries import StepRecord
from meshwright.report.page.area import Axis, Plot, smoothed
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Html, joined, legend, svg, table, tag
from meshwright.report.page.run_charts import compact

MAX_LAYERS = 3  # drawn: those whose fullest expert is the fullest
MAX_ROWS = 64  # experts, or means of neighbouring ones
MAX_COLUMNS = 60  # steps, or means of neighbouring ones
WIDTH, ROW_HEIGHT, LABEL = 600.0, 6.0, 44.0
LEVELS = (0.01, 0.5, 0.8, 1.25, 2.0)  # loads between which a cell has one shade; the first: no tokens at all
SHADES = (("warn", 0.75), ("ep", 0.08), ("ep", 0.22), ("ep", 0.42), ("ep", 0.66), ("ep", 1.0))
LINES = (
    ("balance_loss", "balance loss", "accent"),
    ("router_entropy", "entropy of the router", "cp"),
    ("expert_peak_mean", "fullest expert over the mean, mean of the layers", "ep"),
)
DROPPED = "num_dropped_visits"
SMOOTHED_SHARE = 0.02
Loads = NDArray[np.float64]  # [steps, layers, experts]


def expert_part(records: Sequence[StepRecord]) -> Html | None:
    """Loads of experts and what routers did over a run; None for a run without experts."""
    routed = [record for record in records if "router_entropy" in record.extra]
    if not routed:
        return None
    with_loads = [record for record in routed if record.expert_loads]
    lines = [tag("div", tag("h3", words), _line(routed, key, words, colour)) for key, words, colour in LINES]
    return joined(
        _summary(routed),
        _maps(with_loads) if with_loads else None,
        tag("div", *lines, class_="two"),
    )


def _summary(records: Sequence[StepRecord]) -> Html:
    last, dropped = records[-1], sum(record.extra.get(DROPPED, 0.0) for record in records)
    rows = [
        ("fullest expert over the mean, last step", f"{last.extra.get('expert_peak', float('nan')):.2f}"),
        ("entropy of the router, last step", f"{last.extra['router_entropy']:.3f}"),
        ("balance loss, last step", f"{last.extra.get('balance_loss', 0.0):.4f}"),
        ("dropped visits, whole run", f"{dropped:,.0f}"),
    ]
    if "exposed_ep" in last.parts_s:
        exposed = float(
            np.mean([record.parts_s.get("exposed_ep", 0.0) / record.step_s for record in records if record.step_s > 0] or [0.0])
        )
        rows.append(("all-to-all exposed, mean share of a step", f"{100 * exposed:.1f} %"))
    return table(("", "value>"), rows, "Experts in numbers", class_="facts")


def _maps(records: Sequence[StepRecord]) -> Html:
    """Heat maps of the layers with the fullest experts."""
    shape = (len(records[-1].expert_loads), len(records[-1].expert_loads[0]))
    alike = [record for record in records if (len(record.expert_loads), len(record.expert_loads[0])) == shape]
    loads = np.array([record.expert_loads for record in alike], dtype=np.float64)
    steps = [record.step for record in alike]
    fullest = np.argsort(-loads.max(axis=2).mean(axis=0), kind="stable")[:MAX_LAYERS]
    key = legend(
        (f"color-mix(in srgb, {var(colour)} {round(100 * opacity)}%, transparent)", words)
        for (colour, opacity), words in zip(
            SHADES, ("no tokens", "below half", "below 0.8", "near the mean", "up to twice", "more"), strict=True
        )
    )
    left_out = f" Of {shape[0]} layers with experts, those with the fullest experts are drawn." if shape[0] > MAX_LAYERS else ""
    caption = tag(
        "p", f"Load of each expert over the mean of its layer: one row for each expert, time from left to right.{left_out}", class_="small"
    )
    maps = [
        joined(tag("h3", f"Layer {layer + 1} of those with experts"), heat_map(loads[:, layer], steps))
        for layer in sorted(fullest.tolist())
    ]
    return joined(key, *maps, caption)


def heat_map(loads: NDArray[np.float64], steps: Sequence[int]) -> Html:
    """Loads [steps, experts] as a drawing: a row for each expert, or for neighbouring ones."""
    cells = _averaged(_averaged(loads, MAX_COLUMNS).T, MAX_ROWS)  # [rows, columns]
    height = ROW_HEIGHT * len(cells)
    width = (WIDTH - LABEL) / cells.shape[1]
    levels = np.searchsorted(LEVELS, cells, side="right")
    drawn = [_shade(levels == level, width, *SHADES[level]) for level in range(len(SHADES)) if (levels == level).any()]
    words = (
        tag("text", "0", x=LABEL - 6, y=10, text_anchor="end", fill=var("soft"), font_size=12),
        tag("text", loads.shape[1] - 1, x=LABEL - 6, y=max(height, 22.0), text_anchor="end", fill=var("soft"), font_size=12),
        tag("text", f"step {steps[0]:,}", x=LABEL, y=height + 14, fill=var("soft"), font_size=12),
        tag("text", f"step {steps[-1]:,}", x=WIDTH, y=height + 14, text_anchor="end", fill=var("soft"), font_size=12),
    )
    label = f"Loads of {loads.shape[1]} experts over steps {steps[0]} to {steps[-1]}"
    return svg(WIDTH, max(height, 22.0) + 18, label, *drawn, *words)


def _shade(cells: NDArray[np.bool_], width: float, colour: str, opacity: float) -> Html:
    """All cells of one shade as one path; neighbours in a row are one rectangle."""
    parts = []
    for row, line in enumerate(cells):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(np.int8)))
        for first, last in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            span = (last - first) * width
            parts.append(f"M{LABEL + first * width:.1f} {row * ROW_HEIGHT:g}h{span:.1f}v{ROW_HEIGHT - 0.5:g}h-{span:.1f}z")
    return tag("path", d="".join(parts), fill=var(colour), fill_opacity=opacity)


def _averaged(values: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """The same along the first dimension, or means of neighbours if there are more than `most`."""
    if len(values) <= most:
        return values
    return np.array([part.mean(axis=0) for part in np.array_split(values, most)])


def _line(records: Sequence[StepRecord], key: str, words: str, colour: str) -> Html:
    known = [(float(record.step), record.extra[key]) for record in records if np.isfinite(record.extra.get(key, np.nan))]
    if not known:
        return tag("p", "It is not recorded.", class_="soft")
    xs, ys = (np.array(column) for column in zip(*known, strict=True))
    low, high = float(ys.min()), float(ys.max())
    room = 0.08 * (high - low) or max(0.05 * abs(high), 0.01)
    plot = Plot(
        Axis.linear(float(xs[0]), float(xs[-1]), "step", compact),
        Axis.linear(low - room, high + room, words, "{:g}".format),
    )
    every = max(len(xs) // 400, 1)
    mean = smoothed(ys, max(round(SMOOTHED_SHARE * len(ys)), 1))
    return plot.drawn(f"{words} over steps", list(_layers(plot, xs[::every], ys[::every], mean[::every], var(colour))), [])


def _layers(plot: Plot, xs: NDArray[np.float64], ys: NDArray[np.float64], mean: NDArray[np.float64], colour: str) -> Iterator[Html]:
    yield plot.line(xs, ys, colour, 1.0, 0.35)
    yield plot.line(xs, mean, colour, 2.0)
