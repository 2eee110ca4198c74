"""The pipeline timeline of one step: a row per stage, a rectangle per operation, and before and after them the ends of the step.

A schedule of very many operations is drawn in columns of time instead: each kind of operation gets the share of the column's height that
it takes of the column's time, so areas stay correct.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.schedule import KIND_NAMES
from meshwright.plan.trace import LaidOut
from meshwright.record.entries import PART_NAMES
from meshwright.report.page.axes import ticks
from meshwright.report.page.colours import kind_colour, var
from meshwright.report.page.markup import Html, joined, legend, number, svg, tag
from meshwright.units import seconds

WIDTH = 1180.0
LABELS = 70.0  # width of the row labels
ROW = 20.0
MAX_OPERATIONS = 5000  # drawn one by one
NUM_CELLS = 12_000  # stages x columns of time, if there are more operations
LEVELS = 20  # number of heights that a share is rounded to: neighbouring columns of equal height become one
KINDS = ("forward", "backward", "weight gradient")
WITHIN = ("tp", "cp", "ep")  # axes whose traffic is part of an operation
LEAST_SHARE = 0.01  # of an operation


def timeline_picture(step: LaidOut) -> Html:
    """The picture with its legend and a sentence on how to read it."""
    num_stages = step.forecast.layout.pp
    row = ROW if num_stages <= 24 else max(480.0 / num_stages, 8.0)
    height = num_stages * row + 46.0
    each = len(step.schedule.start_s) <= MAX_OPERATIONS
    rows = (*_operations(step, row), *_waits(step, row)) if each else _columns(step, row)
    label = (
        f"Timeline of one step: {num_stages} pipeline stages, {len(step.schedule.start_s):,} operations, {seconds(step.forecast.step_s)}"
    )
    drawing = svg(WIDTH, height, label, _background(step, row), *rows, _ends(step, row), _labels(num_stages, row), _time_axis(step, row))
    box = tag("div", drawing, class_="scroll wide", tabindex="0", role="region", aria_label="Pipeline timeline")
    return joined(legend(_legend(step)), box, tag("p", _caption(step, each), class_="small"))


def _x(step: LaidOut, at_s: float) -> float:
    return LABELS + (WIDTH - LABELS - 2.0) * at_s / step.forecast.step_s


def _background(step: LaidOut, row: float) -> Html:
    """The background, which shows where stages wait: no operation covers it there."""
    left, right = _x(step, 0.0), _x(step, step.forecast.step_s)
    return tag("rect", x=left, y=0, width=right - left, height=step.forecast.layout.pp * row, fill=var("faint"))


def _operations(step: LaidOut, row: float) -> Iterator[Html]:
    """A rectangle for every operation; its name and times show when the mouse is over it."""
    order, starts_s, ends_s = step.schedule.schedule, step.start_s, step.end_s
    for i, (start_s, end_s) in enumerate(zip(starts_s.tolist(), ends_s.tolist(), strict=True)):
        kind, chunk, stage = int(order.kind[i]), int(order.chunk[i]), int(order.stage[i])
        name = (
            f"{KIND_NAMES[kind]} chunk {chunk} mb {order.micro_batch[i]}, stage {stage}: {seconds(end_s - start_s)} from {seconds(start_s)}"
        )
        left = _x(step, start_s)
        box = {"x": left, "y": stage * row + 1.0, "width": max(_x(step, end_s) - left - 0.35, 0.15), "height": row - 2.0}
        yield tag("rect", tag("title", name), **box, fill=kind_colour(kind, chunk, order.num_chunks))


def _waits(step: LaidOut, row: float) -> Iterator[Html]:
    """Exposed communication within operations: strips at their lower edge, as high as its share of the time; one path per axis."""
    order, foot = step.schedule.schedule, row - 1.0
    for axis, share in _waiting(step).items():
        high = (row - 2.0) * share
        foot -= high
        boxes = zip(order.stage.tolist(), step.start_s.tolist(), step.end_s.tolist(), strict=True)
        path = "".join(_strip(_x(step, start_s), _x(step, end_s), stage * row + foot, high) for stage, start_s, end_s in boxes)
        yield tag("path", tag("title", f"{PART_NAMES[f'exposed_{axis}']}: {100 * share:.1f} % of every operation"), d=path, fill=var(axis))


def _strip(left: float, right: float, top: float, high: float) -> str:
    across, down = number(max(right - left - 0.35, 0.15)), number(high)
    return f"M{number(left)} {number(top)}h{across}v{down}h-{across}z"


def _waiting(step: LaidOut) -> dict[str, float]:
    """The share of the operations' time in which they wait for the traffic of an axis; shares too small to be drawn are left out."""
    parts_s = step.forecast.parts
    whole_s = sum(parts_s.get(part, 0.0) for part in ("compute", *(f"exposed_{axis}" for axis in WITHIN)))
    shares = {axis: parts_s.get(f"exposed_{axis}", 0.0) / whole_s for axis in WITHIN} if whole_s else {}
    return {axis: share for axis, share in shares.items() if share >= LEAST_SHARE}


def _columns(step: LaidOut, row: float) -> Iterator[Html]:
    """Shares of each kind in columns of time, as one path per kind."""
    num_columns = max(NUM_CELLS // step.forecast.layout.pp, 100)
    shares = _shares(step, num_columns)
    width = (_x(step, step.forecast.step_s) - LABELS) / num_columns
    reached = np.round(np.cumsum(shares, axis=0) * LEVELS) / LEVELS  # sums are rounded, so that the rest is idle time
    below = np.zeros(shares.shape[1:])
    for kind in range(shares.shape[0]):
        path = "".join(_run_paths(below, reached[kind] - below, row, width))
        yield tag("path", d=path, fill=kind_colour(kind, 0, 1))
        below = reached[kind]


def _shares(step: LaidOut, num_columns: int) -> NDArray[np.float64]:
    """The share of every column of time that each kind fills on each stage: kinds x stages x columns."""
    order, edges_s = step.schedule.schedule, np.linspace(0.0, step.forecast.step_s, num_columns + 1)
    shares = np.zeros((int(order.kind.max()) + 1, order.num_stages, num_columns))
    for kind, stage in np.ndindex(shares.shape[:2]):
        mine = np.flatnonzero((order.kind == kind) & (order.stage == stage))
        starts_s, ends_s = step.start_s[mine], step.end_s[mine]
        # Busy time up to a moment: operations of a stage do not overlap, so it is linear between their starts and ends.
        moments_s = np.stack([starts_s, ends_s], axis=1).ravel()
        busy_s = np.concatenate([[0.0], np.cumsum(ends_s - starts_s)])
        done_s = np.stack([busy_s[:-1], busy_s[1:]], axis=1).ravel()
        shares[kind, stage] = np.diff(np.interp(edges_s, moments_s, done_s)) * num_columns / step.forecast.step_s
    return shares


def _run_paths(below: NDArray[np.float64], levels: NDArray[np.float64], row: float, width: float) -> Iterator[str]:
    """A path of rectangles, one for each group of neighbouring equal columns, drawn on top of the heights `below`."""
    inner = row - 2.0
    for stage in range(levels.shape[0]):
        tops, heights = below[stage], levels[stage]
        changes = np.flatnonzero((np.diff(tops) != 0) | (np.diff(heights) != 0)) + 1
        for start, stop in zip([0, *changes.tolist()], [*changes.tolist(), len(heights)], strict=True):
            if heights[start] > 0:
                x, y = LABELS + start * width, stage * row + 1.0 + inner * float(tops[start])
                across, down = number((stop - start) * width), number(inner * float(heights[start]))
                yield f"M{number(x)} {number(y)}h{across}v{down}h-{across}z"


def _ends(step: LaidOut, row: float) -> Html:
    """What the step waits for before the first operation and after the last one, the same on all stages."""
    total = step.forecast.layout.pp * row
    phases = (
        ("data", 0.0, step.data_s, PART_NAMES["data"]),
        ("dp", step.data_s, step.weights_s, "waiting for the first weights"),
        ("dp", step.drained_s, step.reduced_s, "waiting for the last gradients"),
        ("optimizer", step.reduced_s, step.optimized_s, PART_NAMES["optimizer"]),
        ("overhead", step.optimized_s, step.forecast.step_s, PART_NAMES["overhead"]),
    )
    drawn = []
    for colour, start_s, end_s, name in phases:
        if end_s > start_s:
            left = _x(step, start_s)
            title = tag("title", f"{name}: {seconds(end_s - start_s)}")
            width = max(_x(step, end_s) - left, 0.3)
            drawn.append(tag("rect", title, x=left, y=0, width=width, height=total, fill=var(colour), fill_opacity=0.75))
    return joined(*drawn)


def _labels(num_stages: int, row: float) -> Html:
    every = max(math.ceil(13.0 / row), 1)
    return joined(
        *(
            tag("text", f"stage {stage}", x=LABELS - 8.0, y=stage * row + row / 2 + 4.0, text_anchor="end", font_size=11, fill=var("soft"))
            for stage in range(0, num_stages, every)
        )
    )


def _time_axis(step: LaidOut, row: float) -> Html:
    base = step.forecast.layout.pp * row
    drawn = []
    for at_s in ticks(0.0, step.forecast.step_s, 10):
        x = _x(step, at_s)
        drawn.append(tag("line", x1=x, x2=x, y1=base, y2=base + 5.0, stroke=var("soft")))
        anchor = "end" if x > WIDTH - 20.0 else "middle"
        drawn.append(tag("text", seconds(at_s), x=x, y=base + 18.0, text_anchor=anchor, font_size=11, fill=var("soft")))
    return joined(*drawn, tag("text", "time in the step", x=WIDTH - 2.0, y=base + 36.0, text_anchor="end", font_size=11, fill=var("soft")))


def _legend(step: LaidOut) -> list[tuple[str, str]]:
    order = step.schedule.schedule
    each = len(step.schedule.start_s) <= MAX_OPERATIONS
    entries = []
    for kind in range(int(order.kind.max()) + 1):
        if each and order.num_chunks > 1:
            entries.append((kind_colour(kind, 0, order.num_chunks), f"{KINDS[kind]}, first chunk"))
            entries.append((kind_colour(kind, order.num_chunks - 1, order.num_chunks), "last chunk"))
        else:
            entries.append((kind_colour(kind, 0, 1), KINDS[kind]))
    waits = [(var("dp"), "waiting for weights or gradients")] if step.replicas.gather_s + step.replicas.reduce_s > 0 else []
    waits += [(var(axis), PART_NAMES[f"exposed_{axis}"]) for axis in _waiting(step)] if each else []
    return [*entries, (var("faint"), "idle"), *waits, *((var(part), PART_NAMES[part]) for part in ("optimizer", "overhead"))]


def _caption(step: LaidOut, each: bool) -> str:
    order, schedule = step.schedule.schedule, step.schedule
    idle = 100 * float(schedule.idle_s.mean()) / schedule.makespan_s
    words = ((order.num_micro_batches, "micro-batches"), (order.num_chunks, "chunks"), (order.num_stages, "stages"))
    counted = " x ".join(f"{number:,} {word}" for number, word in words if number > 1)
    count = f"{len(schedule.start_s):,} operations" + (f" of {counted}" if counted else "")
    how = "; point at one for its times" if each else "; too many to draw one by one: the height of a colour is its share of that time"
    bubble = f" Stages idle {idle:.1f} % of the pipeline's time on average." if order.num_stages > 1 else ""
    return f"{count}{how}.{bubble}{_within(step)}"


def _within(step: LaidOut) -> str:
    """A sentence about the traffic that operations wait for, and the tiers that it crosses."""
    crossed = step.forecast.placement
    found = [
        f"{PART_NAMES[f'exposed_{axis}']} {seconds(value)} per step ({' and '.join(crossed[axis])})"
        for axis in WITHIN
        if axis in crossed and (value := step.forecast.parts.get(f"exposed_{axis}", 0.0)) > 0
    ]
    return f" Operations include the traffic that they wait for: {', '.join(found)}." if found else ""
