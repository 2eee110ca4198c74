"""Bars in table cells: the waterfall of a step, the gain of changes, hidden and exposed traffic, memory by stage.

A bar is an SVG as wide as its cell, drawn in per cent, so that the numbers beside it stay text and the table fits any width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshwright.plan.explain import AxisTraffic, Change
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.footprint import RESERVE_BYTES, StageMemory
from meshwright.predict.forecast import Forecast
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.page.colours import part_colour, var
from meshwright.report.page.markup import Html, joined, legend, swatch, table, tag
from meshwright.units import GIB, gib, seconds, si

MEMORY_COLOURS = dict(zip(MEMORY_PARTS, ("weights", "gradients", "moments", "activations", "loss", "buffers"), strict=True))
BAR_HEIGHT = 16
NO_DIFFERENCE_PCT = 0.05
HARDLY = 0.005  # of the traffic: a smaller hidden share is shown as none

Span = tuple[float, float, str]  # from, to (shares of the width), colour


def bar(spans: Iterable[Span], *marks: Html, height: int = BAR_HEIGHT) -> Html:
    """A bar of spans. The cells beside it have the same numbers as text, so it is hidden from screen readers."""
    rects = (
        tag("rect", x=f"{100 * low:.3f}%", y=1, width=f"{100 * max(high - low, 0.005):.3f}%", height=height - 2, fill=colour, rx=1)
        for low, high, colour in spans
    )
    return tag("svg", rects, marks, class_="bar", width="100%", height=height, aria_hidden="true")


def mark(at: float, colour: str, height: int = BAR_HEIGHT, dash: str | None = None) -> Html:
    """A thin upright line at a share of the width."""
    x = f"{100 * at:.3f}%"
    return tag("line", x1=x, x2=x, y1=0, y2=height, stroke=colour, stroke_width=1.5, stroke_dasharray=dash)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step as a chart shows it."""

    name: str
    colour: str  # a name in colours.PALETTE, or a part of the step
    seconds: float


def parts_of(forecast: Forecast) -> list[Part]:
    """The parts of the step that take time, in the order of PARTS; they add up to the step."""
    return [Part(PART_NAMES[part], part, forecast.parts[part]) for part in PARTS if forecast.parts[part] > 0]


def waterfall(forecast: Forecast) -> Html:
    """The parts of the step one after the other, and the step with its interval."""
    step_s, (low_s, high_s) = forecast.step_s, forecast.interval
    full_s = max(high_s, step_s) if high_s < 1.5 * step_s else 1.1 * step_s
    rows: list[tuple[Html, ...]] = []
    done_s = 0.0
    for part in parts_of(forecast):
        colour = part_colour(part.colour)
        span = sorted((done_s, done_s + part.seconds))
        done_s += part.seconds
        drawn = bar([(span[0] / full_s, span[1] / full_s, colour)])
        rows.append((swatch(colour, part.name), drawn, _cell(seconds(part.seconds)), _cell(f"{100 * part.seconds / step_s:.1f}")))
    whole = bar([(0.0, step_s / full_s, var("ink"))], _whisker(low_s / full_s, min(high_s / full_s, 1.0)))
    rows.append((tag("b", "step"), whole, tag("b", seconds(step_s)), tag("b", "100.0")))
    return table(("part", "in order", "time>", "% of step>"), rows, "Parts of the step", class_="bars")


def _cell(text: str) -> Html:
    return tag("span", text)


def _whisker(low: float, high: float) -> Html:
    """The interval, over the bar of the step."""
    middle = BAR_HEIGHT / 2
    line = tag("line", x1=f"{100 * low:.3f}%", x2=f"{100 * high:.3f}%", y1=middle, y2=middle, stroke=var("warn"), stroke_width=2)
    return joined(line, mark(low, var("warn")), mark(min(high, 0.998), var("warn")))


def axes_table(axes: Sequence[AxisTraffic]) -> Html:
    """The traffic of each axis in a step on one accelerator, and how much of it is exposed."""
    longest_s = max((max(axis.traffic_s, axis.exposed_s) for axis in axes), default=1.0) or 1.0
    rows = [_axis_row(axis, longest_s) for axis in axes]
    columns = ("axis", "crosses", "carries>", "messages>", "takes>", "exposed>", "exposed / hidden", "hides behind")
    caption = "What each axis carries in one step, on one accelerator; filled bars are what the step waits for, pale ones what is hidden"
    return table(columns, rows, "What each axis carries", caption=caption, class_="bars axes")


def _axis_row(axis: AxisTraffic, longest_s: float) -> tuple[Html | str, ...]:
    colour = var(axis.axis)
    exposed = min(axis.exposed_s, longest_s) / longest_s
    hidden = axis.hidden_s / longest_s
    spans = [(0.0, exposed, colour)]
    drawn = bar(spans, tag("rect", **_hollow(exposed, hidden, colour)) if hidden > 0 else Html(""))
    return (
        tag("b", axis.label, style=f"color:{colour}"),
        " + ".join(axis.tiers) or "one accelerator",
        si(axis.num_bytes, "B", 3),
        f"{axis.num_messages:,.0f}",
        seconds(axis.traffic_s),
        seconds(axis.exposed_s),
        drawn,
        axis.behind if axis.hidden_s > HARDLY * axis.traffic_s else "nothing",
    )


def _hollow(start: float, width: float, colour: str) -> dict[str, str | float]:
    """A span of hidden time: an outline with a pale fill."""
    edge: dict[str, str | float] = {"fill": colour, "fill-opacity": 0.16, "stroke": colour, "stroke-width": 1, "stroke-opacity": 0.7}
    return {"x": f"{100 * start:.3f}%", "width": f"{100 * width:.3f}%", "y": 1.5, "height": BAR_HEIGHT - 3, **edge}


def changes_table(changes: Sequence[Change]) -> Html:
    """What each single change would gain in time per token; losses far larger than the largest gain are cut, with an arrow."""
    felt = [change for change in changes if abs(change.gain_pct) >= NO_DIFFERENCE_PCT]
    rest = [change.what for change in changes if abs(change.gain_pct) < NO_DIFFERENCE_PCT]
    top = max((change.gain_pct for change in felt), default=1.0)
    bottom = max(min((change.gain_pct for change in felt), default=0.0), -1.2 * max(top, 5.0))
    top = max(top, 0.0) or -0.1 * bottom
    rows = [_change_row(change, bottom, top) for change in felt]
    columns = ("change", "slower | faster", "gain %>", "step>")
    note = tag("p", f"Without effect here: {'; '.join(rest)}.", class_="small") if rest else None
    return joined(table(columns, rows, "What one change would gain", class_="bars"), note)


def _change_row(change: Change, bottom: float, top: float) -> tuple[Html | str, ...]:
    def at(gain: float) -> float:
        return (gain - min(bottom, 0.0)) / (top - min(bottom, 0.0))

    gain = max(change.gain_pct, bottom)
    colour = var("data") if change.gain_pct > 0 else var("loss")
    low, high = sorted((at(0.0), at(gain)))
    arrow = tag("text", "\u25c2", x=1, y=12, fill=var("paper"), font_size=11) if change.gain_pct < bottom else Html("")
    drawn = bar([(low, high, colour)], mark(at(0.0), var("ink")), arrow)
    what = change.what if change.fits else joined(change.what, " ", tag("b", "(does not fit)", style=f"color:{var('warn')}"))
    return what, drawn, f"{change.gain_pct:+.1f}", seconds(change.step_s)


def memory_table(forecast: Forecast) -> Html:
    """Peak memory of every stage, compared with the memory of the accelerator; equal stages share a row."""
    chip = forecast.job.cluster.accelerator
    full = max(chip.room_bytes, max(stage.peak_bytes for stage in forecast.memory))
    marks = (mark((chip.room_bytes - RESERVE_BYTES) / full, var("warn"), dash="3 2"), mark(chip.room_bytes / full - 0.001, var("ink")))
    rows = []
    for first, last, stage in _alike(forecast.memory):
        name = f"{first}" if first == last else f"{first} \u2013 {last}"
        share = f"{100 * stage.peak_bytes / chip.room_bytes:.0f}"
        biggest = ((stage.parts[part] / GIB, part) for part in MEMORY_PARTS)
        parts = (f"{size:.1f}" if size >= 0.05 else "\u2013" for size, _ in biggest)
        rows.append((name, f"{stage.layers}", bar(_memory_spans(stage, full), *marks), f"{stage.peak_bytes / GIB:.1f}", share, *parts))
    columns = ("stage", "layers>", "at the peak", "peak GiB>", "% full>", *(f"{part}>" for part in MEMORY_PARTS))
    colours = [(var(MEMORY_COLOURS[part]), part) for part in MEMORY_PARTS]
    room = f"Line: {gib(chip.room_bytes)} of {chip.name}; dashed: less {gib(RESERVE_BYTES)} reserved for context, NCCL and fragmentation."
    return joined(legend(colours), table(columns, rows, "Memory by stage", caption=f"GiB on one accelerator. {room}", class_="bars memory"))


def _memory_spans(stage: StageMemory, full: float) -> list[Span]:
    spans, done = [], 0.0
    for part in MEMORY_PARTS:
        size = stage.parts[part] / full
        if size > 0:
            spans.append((done, done + size, var(MEMORY_COLOURS[part])))
        done += size
    return spans


def _alike(stages: Sequence[StageMemory]) -> list[tuple[int, int, StageMemory]]:
    """Groups of neighbouring stages with equal memory: number of the first, number of the last, and their memory."""
    runs: list[tuple[int, int, StageMemory]] = []
    for number, stage in enumerate(stages):
        if runs and replace(runs[-1][2], stage=number) == stage:
            runs[-1] = (runs[-1][0], number, stage)
        else:
            runs.append((number, number, stage))
    return runs
