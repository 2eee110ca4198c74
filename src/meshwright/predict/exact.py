"""Seconds that the exact schedule of a step adds to its closed form, quick enough to rank hundreds and for steps of any length."""

from __future__ import annotations

from meshwright.layout import Layout
from meshwright.predict.prediction import Prediction, schedule_excess_s

LONG = 4  # rounds of the pipeline after which a step grows evenly
QUICK_OPERATIONS = 100_000  # of a schedule that is timed in about a tenth of a second
MOST_OPERATIONS = 2_000_000  # of a schedule that is timed whole: a second or two, and a few hundred MB


def step_excess_s(prediction: Prediction, layout: Layout, row: int = 0) -> float:
    """Seconds the exact schedule takes beyond the closed form; of a step too long to be timed whole, by a straight line."""
    if layout.pp == 1:
        return 0.0
    if 2 * layout.pp * layout.vp * int(prediction.detail.num_micro_batches[row]) > MOST_OPERATIONS:
        return quick_excess_s(prediction, layout, row)
    return schedule_excess_s(prediction, layout, row)


def quick_excess_s(prediction: Prediction, layout: Layout, row: int = 0) -> float:
    """Seconds the exact schedule takes beyond the closed form.

    After a few rounds of the pipeline every further one adds the same, so a long step is timed by two short ones and a straight line;
    micro-batches that do not fill a round come at the end of all three. Weight gradients fill such a round up, so that zero bubble grows
    less evenly there (0.2 % of a step): it is timed whole as long as that is quick.
    """
    pp, m = layout.pp, int(prediction.detail.num_micro_batches[row])
    if pp == 1:
        return 0.0
    left = m % pp
    uneven = left > 0 and layout.schedule == "zero-bubble" and 2 * pp * layout.vp * m <= QUICK_OPERATIONS
    if m <= (LONG + 1) * pp or uneven:
        return schedule_excess_s(prediction, layout, row)
    before_s, after_s = (schedule_excess_s(prediction, layout, row, rounds * pp + left) for rounds in (LONG - 1, LONG))
    return after_s + (m // pp - LONG) * (after_s - before_s)
