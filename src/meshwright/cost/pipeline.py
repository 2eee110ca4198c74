"""Time of a pipelined step and the activations it holds, in closed form.

Every argument may be a number or an array; they broadcast, so one call prices all candidate layouts. `schedule.py` times the
same schedules operation by operation; the tests hold the two within 0.5 % of each other.

**The idea.** A step lasts as long as its longest chain of operations that wait for each other. Such a chain starts at stage 0,
climbs to the last stage on forwards, stays for a while on the stage that holds everyone up, and comes down on backwards.
Against a step of `m` micro-batches on even stages without messages it gains where it passes a heavier chunk or a message, and
loses where it moves between stages. Each function below adds up a few such chains and takes the longest.

**Where it holds** (0.5 %): all middle chunks alike; one extra on the very first chunk and one on the very last, between half a
chunk less and a quarter of a stage more on the last, a few percent of a stage on the first; a message that the schedule can
hide, that is up to half a chunk's forward and backward (interleaved) or half its weight gradient (zero-bubble; plain 1F1B has
no such limit). A longer message, or heavy extras at both ends of an interleaved pipeline, start chains that are not counted
here: the result is then too short, by a few percent. The same holds for two interleaved stages that are both light.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]
Count = int | NDArray[np.int64]
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds one micro-batch takes in a chunk, and what the model's first and last chunk take beyond that (or less)."""

    forward_s: Quantity
    backward_s: Quantity  # all of it
    weight_s: Quantity = 0.0  # of the backward: the weight gradients, where a schedule may put them off
    first_forward_s: Quantity = 0.0
    first_backward_s: Quantity = 0.0
    first_weight_s: Quantity = 0.0
    last_forward_s: Quantity = 0.0
    last_backward_s: Quantity = 0.0
    last_weight_s: Quantity = 0.0

    @property
    def first_s(self) -> Quantity:
        """Seconds the first chunk takes beyond a middle one."""
        return self.first_forward_s + self.first_backward_s

    @property
    def last_s(self) -> Quantity:
        """Seconds the last chunk takes beyond a middle one."""
        return self.last_forward_s + self.last_backward_s


def with_blocking_sends(times: ChunkTimes, hop_s: Quantity) -> ChunkTimes:
    """Chunk times in seconds when a stage stands still while it sends; the hop itself then costs nothing more.

    Each forward but the model's last is followed by a send, each backward but its last too.
    """
    return replace(
        times,
        forward_s=times.forward_s + hop_s,
        backward_s=times.backward_s + hop_s,
        first_backward_s=times.first_backward_s - hop_s,
        last_forward_s=times.last_forward_s - hop_s,
    )


def pipeline_s(
    num_micro_batches: Count,
    pp: Count,
    vp: Count,
    times: ChunkTimes,
    hop_s: Quantity = 0.0,
    *,
    wrap_s: Quantity | None = None,
    zero_bubble: bool | NDArray[np.bool_] = False,
) -> Column:
    """Seconds from the first forward to the last backward of a step.

    Rows with one chunk per stage run 1F1B, with more the interleaved schedule, and where `zero_bubble` is set the schedule
    that puts off weight gradients. `hop_s` delays the receiver only; see `with_blocking_sends` for the other kind.
    """
    zero = np.asarray(zero_bubble)
    result = np.asarray(one_f_one_b_s(num_micro_batches, pp, times, hop_s))
    if np.any(np.asarray(vp) > 1):
        result = np.where(np.asarray(vp) > 1, interleaved_s(num_micro_batches, pp, vp, times, hop_s, wrap_s), result)
    if zero.any():
        result = np.where(zero, zero_bubble_s(num_micro_batches, pp, vp, times, hop_s, wrap_s), result)
    return result


def busiest_stage_s(num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes) -> Column:
    """Seconds the stage with the most work computes in a step; the rest of `pipeline_s` is bubble."""
    chunk_s = times.forward_s + times.backward_s
    middle_s = np.where(np.asarray(pp) > 2, 0.0, -np.inf)
    extra_s = np.maximum(np.maximum(times.first_s, times.last_s), middle_s)
    extra_s = np.where(np.asarray(pp) == 1, np.add(times.first_s, times.last_s), extra_s)
    return np.asarray(num_micro_batches * (vp * chunk_s + extra_s))


def one_f_one_b_s(num_micro_batches: Count, pp: Count, times: ChunkTimes, hop_s: Quantity = 0.0) -> Column:
    """Seconds of a 1F1B step.

    Stage `p` is `pp - p - 1` forwards ahead, so a chain that climbs from stage `p` to `q` and back comes out `q - p + 1`
    micro-batches later: it loses nothing against staying, and gains two messages per hop. A step is one lap over all stages,
    and `m - 1` micro-batches more, spent on further laps (whole, or sparing a light end) or on staying.
    """
    m, stages, hops_s = np.asarray(num_micro_batches, dtype=float), np.asarray(pp, dtype=float), 2 * np.asarray(hop_s, dtype=float)
    first_s, last_s = times.first_s, times.last_s
    has_middle = stages > 2
    lap_s = first_s + last_s + (stages - 1) * hops_s
    left = m - 1
    # Whole laps; the rest on the last stage, or on a short lap past the heavier end, or among the middle stages.
    num_laps, rest = np.divmod(left, stages)
    middle_s = np.where(has_middle & (rest < stages - 1), 0.0, -np.inf)
    gains = [left * last_s]
    gains.append(num_laps * lap_s + _short_lap_s(rest, last_s, np.where(num_laps > 0, np.maximum(first_s, middle_s), -np.inf), hops_s))
    # Laps that spare the first stage.
    num_laps, rest = np.divmod(left, np.maximum(stages - 1, 1))
    other_s = np.where(has_middle & (num_laps > 0), 0.0, -np.inf)
    gains.append(num_laps * (last_s + (stages - 2) * hops_s) + _short_lap_s(rest, last_s, other_s, hops_s))
    # Laps that spare the last stage, or staying on the first: both come after a second whole lap.
    again = left - stages
    num_laps, rest = np.divmod(np.maximum(again, 0), np.maximum(stages - 1, 1))
    spared_s = num_laps * (first_s + (stages - 2) * hops_s) + _short_lap_s(rest, last_s, np.where(has_middle, np.maximum(first_s, 0), first_s), hops_s)
    gains.append(np.where(again >= 0, lap_s + np.maximum(spared_s, again * first_s), -np.inf))
    # Laps among the middle stages, after one that turns short of the first.
    depth = np.minimum(stages - 1, left)
    num_laps, rest = np.divmod(left - depth, np.maximum(stages - 2, 1))
    inner_s = (num_laps * (stages - 3) + np.maximum(rest - 1, 0)) * hops_s
    gains.append(np.where(has_middle & (left > 0), last_s + (depth - 1) * hops_s + inner_s, -np.inf))
    gained_s = np.maximum.reduce(np.broadcast_arrays(*gains))
    gained_s = np.where(stages > 1, gained_s, left * (first_s + last_s))
    return np.asarray((m + stages - 1) * (times.forward_s + times.backward_s) + lap_s + gained_s)


def _short_lap_s(num_left: Column, last_s: Column, other_s: Column, hops_s: Column) -> Column:
    """Seconds gained with the micro-batches that whole laps leave: staying last, or one lap over as many stages."""
    lap_s = np.maximum(last_s, other_s) + (num_left - 1) * hops_s
    return np.where(num_left > 0, np.maximum(num_left * last_s, lap_s), 0.0)


def interleaved_s(
    num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes, hop_s: Quantity = 0.0, wrap_s: Quantity | None = None
) -> Column:
    """Seconds of an interleaved 1F1B step of two or more chunks per stage.

    Stage `p` is `2 (pp - p - 1)` forwards ahead of the last, so climbing and coming back loses a chunk's time per hop where it
    gains two messages: chains stay on one stage, and messages show only while the pipeline fills and drains, one lap over
    the stages per chunk. The first and last stage are neighbours by the wrap.
    """
    f, b, hop = times.forward_s, times.backward_s, np.asarray(hop_s, dtype=float)
    c, first_s, last_s = f + b, times.first_s, times.last_s
    m, stages, chunks = (np.asarray(x, dtype=float) for x in (num_micro_batches, pp, vp))
    group = np.asarray(smallest_group(num_micro_batches, pp), dtype=float)
    final = m - group * (np.ceil(m / group) - 1)  # the last group's size
    lap_s = (stages - 1) * hop + (hop if wrap_s is None else wrap_s)
    fill_s = np.maximum(stages * f + lap_s - group * f, 0.0)  # waiting per chunk, as a group goes round
    drain_s = np.maximum(stages * b + lap_s - final * b, 0.0)
    ends_s = _end_s(times.first_forward_s, fill_s, group, chunks) + _end_s(times.first_backward_s, drain_s, final, chunks)
    even_s = (m * chunks + stages - 1) * c + 2 * (stages - 1) * hop
    left = m * chunks - 1 - (chunks - 1) * group  # forwards of the last stage after its first backward
    on_last_s = m * last_s + ends_s
    plain_ends_s = (chunks - 1) * (fill_s + drain_s)
    on_middle_s = np.where(stages > 2, ends_s, plain_ends_s + m * first_s) + _off_last_s(1.0, f, b, last_s, hop, left)
    on_first_s = plain_ends_s + m * first_s + _off_last_s(stages - 1, f, b, last_s, hop, left)
    switch_s = np.maximum(c - lap_s + (stages - 2) * hop + 2 * (group - stages) * c, 0.0)  # last to first and back, by the wrap
    mostly_first_s = ends_s - switch_s + np.maximum(m - 2 * group, 0) * first_s + np.minimum(m, 2 * group) * last_s
    # A message longer than the forward: per group, one micro-batch's way back through all chunks, then a climb to the next.
    way_s = (chunks - 1) * (stages * np.maximum(f, b) + lap_s - group * c) + np.maximum(2 * hop - c, 0.0) * (group - 1) / 2
    num_ways = np.ceil(m / group) - 1
    lapping_s = ends_s + np.where(way_s > 0, num_ways * way_s, -np.inf) + np.maximum((num_ways + 1) * last_s, np.minimum(group, m) * last_s)
    return np.asarray(even_s + np.maximum.reduce(np.broadcast_arrays(on_last_s, on_middle_s, on_first_s, mostly_first_s, lapping_s)))


def _end_s(extra_s: Quantity, wait_s: Column, group: Column, chunks: Column) -> Column:
    """Seconds gained while the pipeline fills: one micro-batch through all chunks, or the group through the first chunk and then one."""
    return np.maximum(extra_s + (chunks - 1) * wait_s, group * extra_s + (chunks - 2) * wait_s)


def _off_last_s(hops: Quantity, f: Quantity, b: Quantity, last_s: Quantity, hop_s: Column, left: Column) -> Column:
    """Seconds gained (mostly lost) by staying `hops` before the last stage, with or without a visit there at either end."""
    way_s = hops * (f + b + 2 * hop_s)
    turns = np.minimum(2 * hops, left)
    at_start_s = way_s + last_s - turns * f
    at_end_s = way_s + last_s - turns * b
    both_s = np.where(left > 2 * hops, at_start_s + at_end_s, 0.0)
    return np.maximum.reduce(np.broadcast_arrays(np.zeros_like(both_s), at_start_s, at_end_s, both_s)) - way_s


def zero_bubble_s(
    num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes, hop_s: Quantity = 0.0, wrap_s: Quantity | None = None
) -> Column:
    """Seconds of a step whose weight gradients are put off (ZB-H1, or with several chunks its interleaved form).

    Stage `p` puts them off by `p` backwards, so chains run down the stages without them and end on a stage that catches up.
    """
    f, w, hop = times.forward_s, times.weight_s, np.asarray(hop_s, dtype=float)
    i = times.backward_s - w  # input gradients: what the stage before waits for
    first_s, last_s, visit_s = times.first_s, times.last_s, times.last_s - times.last_weight_s
    m, stages, chunks = (np.asarray(x, dtype=float) for x in (num_micro_batches, pp, vp))
    group = np.asarray(smallest_group(num_micro_batches, pp), dtype=float)
    final = m - group * (np.ceil(m / group) - 1)
    lap_s = (stages - 1) * hop + (hop if wrap_s is None else wrap_s)
    num_turns = m * chunks
    left = num_turns - 1 - (chunks - 1) * group
    up = stages - 1
    wait_s = np.maximum((stages - group) * f + lap_s, 0.0)
    first_f_s = np.where(chunks > 1, _end_s(times.first_forward_s, wait_s, group, chunks), times.first_forward_s)
    fill_s = up * (f + hop) + first_f_s
    # Coming down: turn by turn on the last stage, weight gradients included, or one micro-batch through all chunks without them.
    by_turns_s = -np.minimum(num_turns - 1, up) * w + np.where(chunks > 1, np.maximum(times.first_backward_s, final * times.first_backward_s - np.where(chunks == 2, np.minimum(stages, final) * np.maximum(times.last_weight_s, 0.0), 0.0)), times.first_backward_s)
    by_laps_s = (chunks - 1) * ((stages - group) * i + lap_s) + (np.maximum(left - up, 0) + 1 - num_turns) * w + times.first_backward_s
    drain_s = up * (i + hop) + np.maximum(by_turns_s, by_laps_s)
    owed_w_s = np.where(chunks > 1, 0.0, np.minimum(m, stages) * times.last_weight_s)
    hops = np.minimum(up - 1, left - 1)
    turned_s = np.where(hops >= 1, 2 * hops * hop + (m - hops) * visit_s, -np.inf)
    turned_s = np.maximum(turned_s, np.where(left >= stages, 2 * up * hop + (m - up) * visit_s + first_s - times.last_weight_s, -np.inf))
    on_last_s = np.maximum(m * visit_s, turned_s) + m * times.last_weight_s
    off_last_s = np.where(hops >= 1, 2 * hops * hop + 2 * visit_s, -np.inf)
    off_last_s = np.maximum(off_last_s, np.where(left > up, 2 * up * hop + 2 * visit_s + np.where(stages > 2, np.maximum((m - stages) * first_s, np.minimum(first_s, 0.0)), (m - stages) * first_s), -np.inf))
    ends = [
        fill_s + drain_s + np.maximum(on_last_s - owed_w_s, off_last_s),
        fill_s + np.maximum(on_last_s, off_last_s + owed_w_s),
    ]
    # Stay on a stage to its last weight gradient.
    for hops in (np.asarray(1.0), up - 1):
        off_s = fill_s - np.minimum(hops, left) * f + hops * (i + hop) + visit_s
        off_s = off_s + np.maximum(np.maximum(0.0, 2 * (np.minimum(up - 1, left - 1) - hops) * hop), np.where(left >= stages, 2 * (up - hops) * hop + first_s, 0.0))
        drained_s = np.maximum(0.0, (up - hops) * (i + hop) - np.minimum(up - hops, num_turns - 1) * w + times.first_backward_s)
        ends.append(np.where((hops >= 1) & (hops < up), off_s + drained_s, -np.inf))
    ends.append(fill_s - first_f_s - np.minimum(up, left) * f + up * (i + hop) + visit_s + m * times.first_backward_s + (m - np.minimum(up, left)) * times.first_forward_s + np.maximum(chunks - 1, 0) * wait_s)
    even_s = num_turns * (f + times.backward_s)
    total = even_s + np.maximum.reduce(np.broadcast_arrays(*ends))
    return np.where(stages > 1, total, even_s + m * (first_s + last_s))


def smallest_group(num_micro_batches: Count, pp: Count) -> NDArray[np.int64]:
    """Micro-batches that pass through a chunk before the next chunk's turn: the fewest that Megatron-LM accepts.

    A group, and what is left for the last one, must fill the pipeline, or operations wait for each other in a circle.
    Micro-batches too few to fill it (Megatron-LM refuses them) are one group.
    """
    m, stages = np.broadcast_arrays(np.asarray(num_micro_batches, dtype=np.int64), np.asarray(pp, dtype=np.int64))
    group = np.minimum(m, stages)
    while True:
        rest = m % group
        short = (rest > 0) & (rest < stages)
        if not short.any():
            return group
        group = group + short


def peak_in_flight(
    num_micro_batches: Count, pp: Count, vp: Count, stage: Count, zero_bubble: bool | NDArray[np.bool_] = False
) -> NDArray[np.int64]:
    """Most chunk activations that `stage` holds at once: of micro-batches gone forward whose backward has not ended.

    A schedule that puts off weight gradients holds them until those are done, and so as many on every stage.
    """
    m, stages, chunks, p = (np.asarray(x, dtype=np.int64) for x in (num_micro_batches, pp, vp, stage))
    zero = np.asarray(zero_bubble)
    ahead = np.where(zero, stages - 1, np.where(chunks > 1, 2, 1) * (stages - 1 - p))
    waiting = np.where(chunks > 1, (chunks - 1) * smallest_group(m, stages), 0)
    return np.minimum(m * chunks, ahead + waiting + 1)
