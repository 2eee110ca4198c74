"""Charts whose text keeps its size at any width: horizontal positions are in per cent; lines are stretched, text is not.

A chart is an SVG as wide as its box and of a fixed height. Lines are drawn in an inner SVG with coordinates from 0 to 1,000, which is
stretched to the frame; points and text are drawn outside of it, at a per cent of the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.report.page.axes import log_ticks, ticks
from meshwright.report.page.colours import var
from meshwright.report.page.markup import Child, Html, joined, tag

FULL = 1000.0  # inner coordinates of the frame
TOP, BOTTOM = 8.0, 22.0  # pixels above the frame, and below it for the ticks
LETTER = 7.0  # pixels of a letter, at most
NUM_BUCKETS = 360  # of a line of which only the extremes are drawn
EDGE = 0.06  # of the width: labels this near to an edge are aligned with it

Column = NDArray[np.float64]
Label = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, the texts at its ticks, and its name."""

    low: float
    high: float
    marks: tuple[tuple[float, str], ...]
    name: str
    is_log: bool = False

    @staticmethod
    def linear(low: float, high: float, name: str, label: Label, count: int = 6) -> Axis:
        """An axis with round ticks."""
        if not high > low:
            room = abs(low) * 0.05 or 1.0
            low, high = low - room, high + room
        return Axis(low, high, tuple((value, label(value)) for value in ticks(low, high, count)), name)

    @staticmethod
    def logarithmic(low: float, high: float, name: str, label: Label, marks: Sequence[float] = ()) -> Axis:
        """A logarithmic axis between positive values, with ticks of 1, 2, 5 or at `marks`."""
        return Axis(low, high, tuple((value, label(value)) for value in (marks or log_ticks(low, high))), name, is_log=True)

    def share(self, value: float) -> float:
        """The position of a value: 0 at the low end, 1 at the high end."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shares(self, values: Column) -> Column:
        """The positions of many values."""
        if self.is_log:
            return np.log(values / self.low) / math.log(self.high / self.low)
        return (values - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Plot:
    """Two axes and the height of the drawing."""

    x: Axis
    y: Axis
    height: float = 220.0

    @property
    def frame(self) -> float:
        """Height of the frame in pixels."""
        return self.height - TOP - BOTTOM

    def across(self, value: float) -> str:
        """A value of the x axis as a per cent of the width."""
        return f"{100 * min(max(self.x.share(value), 0.0), 1.0):.2f}%"

    def up(self, value: float) -> float:
        """A value of the y axis in pixels from the top."""
        return TOP + self.frame * (1 - min(max(self.y.share(value), 0.0), 1.0))

    def line(self, xs: Column, ys: Column, colour: str, width: float = 1.6, opacity: float | None = None, dash: str | None = None) -> Html:
        """A line through points."""
        style: dict[str, str | float | None] = {
            "stroke": colour,
            "stroke_width": width,
            "stroke_opacity": opacity,
            "stroke_dasharray": dash,
        }
        return tag(
            "polyline", points=self._points(xs, ys), fill="none", vector_effect="non-scaling-stroke", stroke_linejoin="round", **style
        )

    def band(self, xs: Column, low: Column, high: Column, colour: str, opacity: float = 0.25) -> Html:
        """The area between two lines."""
        points = self._points(np.concatenate((xs, xs[::-1])), np.concatenate((high, low[::-1])))
        return tag("polygon", points=points, fill=colour, fill_opacity=opacity)

    def specks(self, xs: Column, ys: Column, colour: str, width: float = 3.0, opacity: float | None = None) -> Html:
        """Many small points as one path."""
        across, down = self._inside(xs, ys)
        path = "".join(f"M{x:.4g} {y:.4g}h0" for x, y in zip(across.tolist(), down.tolist(), strict=True))
        style: dict[str, str | float | None] = {"stroke": colour, "stroke_width": width, "stroke_opacity": opacity}
        return tag("path", d=path, fill="none", stroke_linecap="round", vector_effect="non-scaling-stroke", **style)

    def _points(self, xs: Column, ys: Column) -> str:
        across, down = self._inside(xs, ys)
        return " ".join(f"{x:.4g},{y:.4g}" for x, y in zip(across.tolist(), down.tolist(), strict=True))

    def _inside(self, xs: Column, ys: Column) -> tuple[Column, Column]:
        """Positions in the stretched frame; a value outside of the frame is drawn at its edge."""
        return np.clip(self.x.shares(xs), 0.0, 1.0) * FULL, (1 - np.clip(self.y.shares(ys), 0.0, 1.0)) * FULL

    def dot(self, x: float, y: float, colour: str, title: str, radius: float = 3.5) -> Html:
        """A point, which shows a text when the mouse is over it."""
        return tag("circle", tag("title", title), cx=self.across(x), cy=self.up(y), r=radius, fill=colour)

    def level(self, y: float, colour: str, words: str, *, is_written: bool = True) -> Html:
        """A dashed line across the frame, with text at its left end, above it if there is room, or with text for the mouse only."""
        at = self.up(y)
        title = None if is_written else tag("title", words)
        line = tag("line", title, x1="0%", x2="100%", y1=at, y2=at, stroke=colour, stroke_dasharray="5 4", stroke_width=1.2)
        return joined(
            line, _words(words, "0.8%", at + 14.0 if at < TOP + 16 else at - 5.0, "start", colour, class_="halo") if is_written else None
        )

    def upright(self, x: float, colour: str, title: str) -> Html:
        """A thin line from the bottom to the top."""
        at = self.across(x)
        return tag("line", tag("title", title), x1=at, x2=at, y1=TOP, y2=TOP + self.frame, stroke=colour, stroke_opacity=0.55)

    def whisker(self, x: float, low: float, high: float, colour: str) -> Html:
        """An interval at one place."""
        at = self.across(x)
        return tag("line", x1=at, x2=at, y1=self.up(low), y2=self.up(high), stroke=colour, stroke_width=2)

    def arrow(self, x: float, colour: str, title: str) -> Html:
        """A sign at the top of the frame for a value above the frame."""
        return tag("text", tag("title", title), "\u25b4", x=self.across(x), y=TOP + 7.0, text_anchor="middle", fill=colour, font_size=11)

    def drawn(self, label: str, layers: Sequence[Html], marks: Sequence[Html] = ()) -> Html:
        """The chart; `label` says in words what it shows."""
        longest = max((len(words) for _, words in self.y.marks), default=1)
        numbers = [_words(words, "100%", self.up(value) + 4.0, "end") for value, words in self.y.marks]
        side = tag("svg", *numbers, class_="fixed", width=LETTER * longest, height=self.height, aria_hidden="true")
        area = tag(
            "svg", self._grid(), self._inner(layers), *marks, class_="fixed grow", width="100%", height=self.height, aria_hidden="true"
        )
        above = tag("p", self.y.name, class_="axis-name")
        below = tag("p", self.x.name, class_="axis-name right")
        return tag("div", above, tag("div", side, area, class_="plot"), below, role="img", aria_label=label)

    def _inner(self, layers: Sequence[Html]) -> Html:
        box = f"0 0 {FULL:.0f} {FULL:.0f}"
        return tag(
            "svg", *layers, viewBox=box, preserveAspectRatio="none", x="0", y=TOP, width="100%", height=self.frame, overflow="visible"
        )

    def _grid(self) -> Html:
        base = TOP + self.frame
        drawn = [tag("line", x1="0%", x2="100%", y1=self.up(v), y2=self.up(v), stroke=var("line")) for v, _ in self.y.marks]
        drawn.append(tag("line", x1="0%", x2="100%", y1=base, y2=base, stroke=var("soft")))
        for value, words in self.x.marks:
            at, share = self.across(value), self.x.share(value)
            drawn.append(tag("line", x1=at, x2=at, y1=base, y2=base + 4.0, stroke=var("soft")))
            drawn.append(_words(words, at, base + 17.0, "start" if share < EDGE else "end" if share > 1 - EDGE else "middle"))
        return joined(*drawn)


def _words(words: Child, x: str, y: float, anchor: str, colour: str = "", class_: str | None = None) -> Html:
    return tag("text", words, x=x, y=y, text_anchor=anchor, fill=colour or var("soft"), font_size=12, class_=class_)


def extremes(xs: Column, ys: Column, num_buckets: int = NUM_BUCKETS) -> tuple[Column, Column]:
    """The points that a line needs to look the same: the lowest and the highest of every bucket, in their order."""
    if len(xs) <= 2 * num_buckets:
        return xs, ys
    edges = np.linspace(0, len(xs), num_buckets + 1).astype(int)
    kept = [0, len(xs) - 1]
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept += [start + int(np.argmin(ys[start:stop])), start + int(np.argmax(ys[start:stop]))]
    chosen = np.unique(kept)
    return xs[chosen], ys[chosen]


def buckets(xs: Column, ys: Column, num_buckets: int = NUM_BUCKETS // 2) -> tuple[Column, Column, Column, Column]:
    """Buckets of neighbouring points: the middle of each, and its 10th, 50th and 90th percentile."""
    count = min(num_buckets, len(xs))
    edges = np.linspace(0, len(xs), count + 1).astype(int)
    parts = [(xs[start:stop], ys[start:stop]) for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)]
    columns = ((float(x.mean()), *np.percentile(y, [10, 50, 90]).tolist()) for x, y in parts)
    middle, low, median, high = (np.array(column) for column in zip(*columns, strict=True))
    return middle, low, median, high


def smoothed(values: Column, width: int) -> Column:
    """The mean over `width` neighbours, fewer at the ends."""
    if width <= 1:
        return values
    sums = np.concatenate(([0.0], np.cumsum(values)))
    place = np.arange(len(values))
    first, last = np.maximum(place - width // 2, 0), np.minimum(place + (width + 1) // 2, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first))
