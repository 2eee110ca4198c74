"""The exact schedule of a step: every operation of every stage, and the seconds that it adds to the closed form.

The closed form ranks layouts; a forecast shows the exact schedule. A search and a single forecast both use `step_excess_s`, so that a
layout has only one step time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.cost.pipeline import Quantity, pipeline_s
from meshwright.cost.schedule import Hops, Timeline, evaluate, schedule_named
from meshwright.layout import Layout
from meshwright.predict.prediction import Column, Prediction
from meshwright.predict.stages import chunk_share
from meshwright.predict.step import StepParts

LONG = 4  # rounds of the pipeline after which every further round adds the same time
QUICK_OPERATIONS = 100_000  # of a schedule that is timed in about a tenth of a second
MOST_OPERATIONS = 2_000_000  # of a schedule that is timed completely: a second or two, and a few hundred MB


def exact_prediction(closed: Prediction) -> Prediction:
    """A prediction of one layout with the step of its exact schedule. What the exact schedule adds to the closed form is bubble."""
    layout, closed_s = closed.layouts.row(0), float(closed.step_s[0])
    exact_s = closed_s + step_excess_s(closed.detail, layout)
    bubble = closed.parts["bubble"] + exact_s - closed_s
    parts = {**closed.parts, "bubble": np.maximum(bubble, 0.0), "compute": closed.parts["compute"] + np.minimum(bubble, 0.0)}
    return retimed(closed, exact_s, parts)


def retimed(prediction: Prediction, step_s: float, parts: dict[str, Column]) -> Prediction:
    """A prediction of one layout with another step time, made of `parts`, and with all that follows from it."""
    old_s = float(prediction.step_s[0])
    return replace(
        prediction,
        step_s=np.array([step_s]),
        low_s=step_s * prediction.low_s / old_s,
        high_s=step_s * prediction.high_s / old_s,
        parts=parts,
        tokens_per_s=prediction.tokens_per_s * old_s / step_s,
        mfu=prediction.mfu * old_s / step_s,
        hfu=prediction.hfu * old_s / step_s,
        time_to_train_s=prediction.time_to_train_s + prediction.num_steps * (step_s - old_s),
    )


def step_excess_s(detail: StepParts, layout: Layout, row: int = 0) -> float:
    """Seconds that the exact schedule adds to the closed form.

    Extrapolated on a straight line if the step is too long to be timed completely.
    """
    if layout.pp == 1:
        return 0.0
    if 2 * layout.pp * layout.vp * int(detail.num_micro_batches[row]) > MOST_OPERATIONS:
        return quick_excess_s(detail, layout, row)
    return schedule_excess_s(detail, layout, row)


def quick_excess_s(detail: StepParts, layout: Layout, row: int = 0) -> float:
    """Seconds that the exact schedule adds to the closed form.

    After a few rounds of the pipeline every further round adds the same time, so a long step is extrapolated from two short ones.
    Micro-batches that do not fill a round come at the end of all three. Weight gradients fill such a round, so zero bubble grows less
    evenly there (0.2 % of a step): it is timed completely as long as that is quick.
    """
    pp, m = layout.pp, int(detail.num_micro_batches[row])
    if pp == 1:
        return 0.0
    left = m % pp
    uneven = left > 0 and layout.is_zero_bubble and 2 * pp * layout.vp * m <= QUICK_OPERATIONS
    if m <= (LONG + 1) * pp or uneven:
        return schedule_excess_s(detail, layout, row)
    before_s, after_s = (schedule_excess_s(detail, layout, row, rounds * pp + left) for rounds in (LONG - 1, LONG))
    return after_s + (m // pp - LONG) * (after_s - before_s)


@dataclass(frozen=True, slots=True)
class Cells:
    """Seconds of one micro-batch in every chunk, by stage and chunk."""

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]  # all of it
    weight_s: NDArray[np.float64] | None  # of the backward, where the schedule puts weight gradients off


def cells(detail: StepParts, layout: Layout, row: int = 0) -> Cells:
    """What the chunks of layout number `row` take."""
    times, layer = detail.times.row(row), detail.layer
    more = more_layers(detail, layout, row)

    def grid(middle: Quantity, first: Quantity, last: Quantity, layer_s: Column) -> NDArray[np.float64]:
        """Seconds by stage and chunk.

        `first` and `last` are for all additional layers of the end stages, which are spread over their chunks here.
        """
        each_s = _at(layer_s, row)
        found: NDArray[np.float64] = np.full((layout.pp, layout.vp), middle) + more * each_s
        found[0, 0] += first - more[0].sum() * each_s
        found[-1, -1] += last - more[-1].sum() * each_s * (layout.pp > 1)
        return np.maximum(found, 0.0)  # a chunk without layers, but for rounding

    return Cells(
        grid(times.forward_s, times.first_forward_s, times.last_forward_s, layer.total_s(0)),
        grid(times.backward_s, times.first_backward_s, times.last_backward_s, layer.total_s(1)),
        grid(times.weight_s, times.first_weight_s, times.last_weight_s, layer.weight_s) if layout.is_zero_bubble else None,
    )


def timeline(detail: StepParts, layout: Layout, row: int = 0, num_micro_batches: int = 0) -> Timeline:
    """When every operation of every stage starts and ends, for layout number `row`; or for a step of so many micro-batches."""
    return timeline_of(cells(detail, layout, row), detail, layout, row, num_micro_batches)


def timeline_of(found: Cells, detail: StepParts, layout: Layout, row: int = 0, num_micro_batches: int = 0) -> Timeline:
    """The same for chunks that take what `found` says."""
    pp, vp = layout.pp, layout.vp
    name = "zero-bubble" if layout.is_zero_bubble else "interleaved" if vp > 1 else "1f1b"
    order = schedule_named(name, pp, vp, num_micro_batches or int(detail.num_micro_batches[row]))
    hops = Hops(hop_s=float(detail.message_s[row]) if layout.overlap_pp else 0.0)
    return evaluate(order, found.forward_s, found.backward_s, weight_s=found.weight_s, hops=hops)


def schedule_excess_s(detail: StepParts, layout: Layout, row: int = 0, num_micro_batches: int = 0) -> float:
    """Seconds by which the exact schedule of layout number `row` is longer than its closed form, or of a step of so many micro-batches."""
    whole_s = _closed_pipeline_s(detail, layout, row)
    inside = ("compute", "bubble", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp")
    slowest = sum(float(detail.seconds[part][row]) for part in inside) / max(whole_s, 1e-30)
    closed_s = _closed_pipeline_s(detail, layout, row, num_micro_batches) if num_micro_batches else whole_s
    return (timeline(detail, layout, row, num_micro_batches).makespan_s - closed_s) * slowest


def more_layers(detail: StepParts, layout: Layout, row: int) -> NDArray[np.float64]:
    """Layers that each chunk of each stage has more than a middle chunk, by stage and chunk, as the trainer distributes them."""
    more = np.zeros((layout.pp, layout.vp))
    if layout.pp > 1:
        first, middle, last = (int(_at(count, row)) for count in (detail.split.first, detail.split.middle, detail.split.last))
        for chunk in range(layout.vp):
            more[0, chunk] = chunk_share(first, layout.vp, chunk, short_at_the_end=False) - middle / layout.vp
            more[-1, chunk] = chunk_share(last, layout.vp, chunk, short_at_the_end=True) - middle / layout.vp
    return more


def _at(column: ArrayLike, row: int) -> float:
    """One row of a column; a column with one entry is valid for all rows."""
    values = np.ravel(column)
    return float(values[row if len(values) > 1 else 0])


def _closed_pipeline_s(detail: StepParts, layout: Layout, row: int, num_micro_batches: int = 0) -> float:
    m = num_micro_batches or int(detail.num_micro_batches[row])
    hop_s = float(detail.message_s[row]) if layout.overlap_pp else 0.0
    return float(pipeline_s(m, layout.pp, layout.vp, detail.times.row(row), hop_s, zero_bubble=layout.is_zero_bubble))
