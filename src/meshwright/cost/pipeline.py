"""Time of a pipelined step and the activations it holds, in closed form.

Every argument may be a number or an array; they broadcast, so one call prices all candidate layouts. `schedule.py` times the
same schedules operation by operation; the tests check that the two agree within 0.5 %.

**The idea.** A step lasts as long as its longest chain of operations that wait for each other. Such a chain starts at stage 0,
climbs to the last stage through forwards, stays for a while on the stage that delays the others, and comes down through backwards.
Compared with the time of `m` micro-batches on one stage of an even pipeline, a chain gains seconds where it passes a heavier chunk or a
message, and loses seconds where it leaves a stage that still has work. Each function below adds up a few such chains, in seconds gained,
and takes the longest.

**Where 0.5 % holds.** All middle chunks are equal; the last chunk is heavier by up to a quarter of a stage, or lighter by up to half a
chunk; the first chunk is heavier by up to 1 % of a stage, or as light as the last; messages take up to a quarter of a chunk's time
(interleaved), up to half of its weight gradient (zero-bubble), or any time (1F1B).

**Where it does not.** Longer messages, up to the time of a chunk: within about 10 %, mostly too short; up to 30 % if the number of stages
does not divide the micro-batches. Two interleaved stages that are both light, and delay each other in turn: too short by up to 8 %.
Zero-bubble with fewer micro-batches than stages: within 7 %; with both ends light and fewer than three micro-batches per stage: too short
by up to 2 %.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import reduce

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]
Count = int | NDArray[np.int64]
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """Seconds that one micro-batch takes in a chunk, and how much more (or less) the first and the last chunk of the model take."""

    forward_s: Quantity
    backward_s: Quantity  # the whole backward
    weight_s: Quantity = 0.0  # the part of the backward that computes weight gradients, if a schedule may postpone it
    first_forward_s: Quantity = 0.0
    first_backward_s: Quantity = 0.0
    first_weight_s: Quantity = 0.0
    last_forward_s: Quantity = 0.0
    last_backward_s: Quantity = 0.0
    last_weight_s: Quantity = 0.0

    @property
    def first_s(self) -> Quantity:
        """Seconds that the first chunk takes more than a middle one."""
        return self.first_forward_s + self.first_backward_s

    @property
    def last_s(self) -> Quantity:
        """Seconds that the last chunk takes more than a middle one."""
        return self.last_forward_s + self.last_backward_s

    def row(self, number: int) -> ChunkTimes:
        """The times of one row, as numbers; one number stands for all rows."""
        values = {f.name: np.ravel(getattr(self, f.name)) for f in fields(self)}
        return ChunkTimes(**{name: float(each[number if len(each) > 1 else 0]) for name, each in values.items()})


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

    Rows with one chunk per stage run 1F1B, rows with more chunks the interleaved schedule, and rows with `zero_bubble` the schedule
    that postpones weight gradients. `hop_s` delays the receiver only: if a stage does nothing while it sends, the time of the message is
    part of its chunk times.
    """
    zero = np.asarray(zero_bubble)
    result = np.asarray(one_f_one_b_s(num_micro_batches, pp, times, hop_s))
    if np.any(np.asarray(vp) > 1):
        result = np.where(np.asarray(vp) > 1, interleaved_s(num_micro_batches, pp, vp, times, hop_s, wrap_s), result)
    if zero.any():
        result = np.where(zero, zero_bubble_s(num_micro_batches, pp, vp, times, hop_s, wrap_s), result)
    return result


def busiest_stage_s(num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes) -> Column:
    """Seconds for which the stage with the most work computes in a step; the rest of `pipeline_s` is bubble."""
    chunk_s = times.forward_s + times.backward_s
    middle_s = np.where(np.asarray(pp) > 2, 0.0, -np.inf)
    extra_s = np.maximum(np.maximum(times.first_s, times.last_s), middle_s)
    extra_s = np.where(np.asarray(pp) == 1, np.add(times.first_s, times.last_s), extra_s)
    return np.asarray(num_micro_batches * (vp * chunk_s + extra_s))


def one_f_one_b_s(num_micro_batches: Count, pp: Count, times: ChunkTimes, hop_s: Quantity = 0.0) -> Column:
    """Seconds of a 1F1B step.

    Stage `p` is `pp - p - 1` forwards ahead, so a chain that climbs from stage `p` to `q` and comes back is then `q - p + 1`
    micro-batches further: it loses nothing compared with staying, and gains two messages per hop. A step is one lap over all stages,
    and `m - 1` more micro-batches, in which the chain makes further laps (whole, or without a light end) or stays.
    """
    m, stages = (np.asarray(x, dtype=np.float64) for x in (num_micro_batches, pp))
    first_s, last_s, hops_s = times.first_s, times.last_s, 2 * np.asarray(hop_s, dtype=np.float64)
    inner = np.maximum(stages - 1, 1)  # stages in a lap that leaves out one end
    has_middle = stages > 2
    lap_s = first_s + last_s + (stages - 1) * hops_s
    left = m - 1

    num_laps, rest = _divided(left, stages)
    other_s = np.maximum(first_s, np.where(has_middle & (rest < stages - 1), 0.0, -np.inf))
    whole_s = num_laps * lap_s + _short_lap_s(rest, last_s, np.where(num_laps > 0, other_s, -np.inf), hops_s)

    num_laps, rest = _divided(left, inner)
    other_s = np.where(has_middle & (num_laps > 0), 0.0, -np.inf)
    sparing_first_s = num_laps * (last_s + (stages - 2) * hops_s) + _short_lap_s(rest, last_s, other_s, hops_s)

    again = left - stages  # leaving out the last stage, or staying on the first, comes after a second whole lap
    num_laps, rest = _divided(np.maximum(again, 0), inner)
    other_s = np.where(has_middle, np.maximum(first_s, 0.0), first_s)
    sparing_last_s = num_laps * (first_s + (stages - 2) * hops_s) + _short_lap_s(rest, last_s, other_s, hops_s)
    after_second_s = np.where(again >= 0, lap_s + np.maximum(sparing_last_s, again * first_s), -np.inf)

    depth = np.minimum(stages - 1, left)  # laps among the middle stages come after one that leaves out the first
    num_laps, rest = _divided(left - depth, np.maximum(stages - 2, 1))
    among_s = last_s + (depth - 1 + num_laps * (stages - 3) + np.maximum(rest - 1, 0)) * hops_s
    middle_s = np.where(has_middle & (left > 0), among_s, -np.inf)

    gained_s = _longest_s(left * last_s, whole_s, sparing_first_s, after_second_s, middle_s)
    gained_s = np.where(stages > 1, gained_s, left * (first_s + last_s))
    return np.asarray((m + stages - 1) * (times.forward_s + times.backward_s) + lap_s + gained_s)


def _short_lap_s(num_left: Column, last_s: Quantity, other_s: Quantity, hops_s: Column) -> Column:
    """Seconds gained with the micro-batches that are left after whole laps: staying on the last stage, or one lap over as many stages."""
    lap_s = np.maximum(last_s, other_s) + (num_left - 1) * hops_s
    return np.asarray(np.where(num_left > 0, np.maximum(num_left * last_s, lap_s), 0.0))


@dataclass(frozen=True, slots=True)
class _Counts:
    """Counts of the schedule, as floats that broadcast."""

    m: Column
    stages: Column
    chunks: Column
    group: Column  # micro-batches that pass through a chunk before it is the next chunk's turn
    final: Column  # micro-batches in the last group
    turns: Column  # passes through chunks of a stage, forward and backward each
    left: Column  # forwards of the last stage after its first backward


def _counts(num_micro_batches: Count, pp: Count, vp: Count) -> _Counts:
    m, stages, chunks = (np.asarray(x, dtype=np.float64) for x in (num_micro_batches, pp, vp))
    group = smallest_group(num_micro_batches, pp).astype(np.float64)
    final = m - group * (np.ceil(m / group) - 1)
    return _Counts(m, stages, chunks, group, final, turns=m * chunks, left=m * chunks - 1 - (chunks - 1) * group)


def _longest_s(*chains_s: Quantity) -> Column:
    return np.asarray(reduce(np.maximum, chains_s))


def _divided(count: Column, size: Column) -> tuple[Column, Column]:
    """Quotient and remainder; for counts this small it is faster than `np.divmod`, and as exact."""
    whole = np.floor(count / size)
    return whole, count - whole * size


def interleaved_s(
    num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes, hop_s: Quantity = 0.0, wrap_s: Quantity | None = None
) -> Column:
    """Seconds of an interleaved 1F1B step of two or more chunks per stage.

    Stage `p` is `2 (pp - p - 1)` forwards ahead of the last, so climbing and coming back loses the time of a chunk per hop and gains
    only two messages. Chains therefore stay on one stage, and messages count only while the pipeline fills and drains, with one lap over
    the stages per chunk. The first and the last stage are neighbours through the wrap.
    """
    n, hop = _counts(num_micro_batches, pp, vp), np.asarray(hop_s, dtype=np.float64)
    f, b, first_s, last_s = times.forward_s, times.backward_s, times.first_s, times.last_s
    chunk_s = f + b
    lap_s = (n.stages - 1) * hop + (hop if wrap_s is None else wrap_s)
    fill_s = np.maximum((n.stages - n.group) * f + lap_s, 0.0)  # waiting per chunk, while the first group goes round
    drain_s = np.maximum((n.stages - n.final) * b + lap_s, 0.0)
    ends_s = _end_s(times.first_forward_s, fill_s, n.group, n.chunks) + _end_s(times.first_backward_s, drain_s, n.final, n.chunks)
    plain_s = (n.chunks - 1) * (fill_s + drain_s)

    on_middle_s = np.where(n.stages > 2, ends_s, plain_s + n.m * first_s) + _off_last_s(1.0, times, hop, n.left)
    on_first_s = plain_s + n.m * first_s + _off_last_s(n.stages - 1, times, hop, n.left)
    to_first_s = np.maximum((1 + 2 * (n.group - n.stages)) * chunk_s + (n.stages - 2) * hop - lap_s, 0.0)  # and back, through the wrap
    mostly_first_s = ends_s - to_first_s + np.maximum(n.m - 2 * n.group, 0) * first_s + np.minimum(n.m, 2 * n.group) * last_s
    # Messages longer than a forward: in each group, one micro-batch goes back through all chunks, and the chain climbs to the next group.
    back_s = (n.chunks - 1) * (n.stages * np.maximum(f, b) + lap_s - n.group * chunk_s)
    back_s = back_s + np.maximum(2 * hop - chunk_s, 0.0) * (n.group - 1) / 2
    num_back = np.ceil(n.m / n.group) - 1
    backs_s = np.where((back_s > 0) & (num_back > 0), ends_s + num_back * back_s + (num_back + 1) * last_s, -np.inf)

    gained_s = _longest_s(n.m * last_s + ends_s, on_middle_s, on_first_s, mostly_first_s, backs_s)
    return np.asarray((n.turns + n.stages - 1) * chunk_s + 2 * (n.stages - 1) * hop + gained_s)


def _end_s(extra_s: Quantity, wait_s: Column, group: Column, chunks: Column) -> Column:
    """Seconds gained while the pipeline fills (or drains): one micro-batch goes through all chunks, or the group goes through the first."""
    return np.asarray(np.maximum(extra_s + (chunks - 1) * wait_s, group * extra_s + (chunks - 2) * wait_s))


def _off_last_s(hops: Quantity, times: ChunkTimes, hop_s: Column, left: Column) -> Column:
    """Seconds gained (mostly lost) by staying `hops` stages before the last one, with or without a visit to the last at either end."""
    way_s = hops * (times.forward_s + times.backward_s + 2 * hop_s)
    passed = np.minimum(2 * hops, left)
    at_start_s = way_s + times.last_s - passed * times.forward_s
    at_end_s = way_s + times.last_s - passed * times.backward_s
    both_s = np.where(left > 2 * hops, at_start_s + at_end_s, 0.0)
    return _longest_s(0.0, at_start_s, at_end_s, both_s) - way_s


def zero_bubble_s(
    num_micro_batches: Count, pp: Count, vp: Count, times: ChunkTimes, hop_s: Quantity = 0.0, wrap_s: Quantity | None = None
) -> Column:
    """Seconds of a step whose weight gradients are postponed (ZB-H1, or with several chunks its interleaved form).

    Stage `p` postpones them by `p` backwards. Chains come down the stages without them, and may end on a stage that still computes them.
    """
    n, hop = _counts(num_micro_batches, pp, vp), np.asarray(hop_s, dtype=np.float64)
    split = _Split(n, times, hop, (n.stages - 1) * hop + (hop if wrap_s is None else wrap_s))
    on_last_s, off_last_s, owed_s = split.stays_s()
    gained_s = split.fill_s + _longest_s(
        split.drain_s + np.maximum(on_last_s - owed_s, off_last_s),  # down to the first stage, until its last weight gradient
        np.maximum(on_last_s, off_last_s + owed_s),  # or until the last stage's
        split.short_of_last_s(np.asarray(1.0)),
        split.short_of_last_s(n.stages - 2),
        split.on_first_s(),
        split.laps_s(),
    )
    gained_s = np.where(n.stages > 1, gained_s, n.m * (times.first_s + times.last_s))
    return np.asarray(n.turns * (times.forward_s + times.backward_s) + gained_s)


@dataclass(frozen=True, slots=True)
class _Split:
    """Chains of a schedule that splits the backward, in seconds gained over the turns of one stage.

    A `visit` passes the last chunk forward and backward, without its weight gradient.
    """

    n: _Counts
    times: ChunkTimes
    hop_s: Column
    lap_s: Column  # messages of one lap over all stages

    @property
    def up(self) -> Column:
        return self.n.stages - 1

    @property
    def input_s(self) -> Quantity:
        """Seconds of the input gradient, for which the stage before waits."""
        return self.times.backward_s - self.times.weight_s

    @property
    def visit_s(self) -> Quantity:
        return self.times.last_s - self.times.last_weight_s

    @property
    def wait_s(self) -> Column:
        """Seconds of waiting per chunk, while the first group goes round."""
        return np.maximum((self.n.stages - self.n.group) * self.times.forward_s + self.lap_s, 0.0)

    @property
    def entry_s(self) -> Column:
        """Seconds added to the climb by the extra time of the first chunk, and by laps longer than the group."""
        extra_s = self.times.first_forward_s
        return np.where(self.n.chunks > 1, _end_s(extra_s, self.wait_s, self.n.group, self.n.chunks), extra_s)

    @property
    def fill_s(self) -> Column:
        """Seconds until the last stage has its first forward."""
        return self.up * (self.times.forward_s + self.hop_s) + self.entry_s

    @property
    def drain_s(self) -> Column:
        """Seconds gained by coming down: turn by turn on the last stage first, or with one micro-batch through all chunks."""
        n, t = self.n, self.times
        caught_up_s = np.where(n.chunks == 2, np.minimum(n.stages, n.final) * np.maximum(t.last_weight_s, 0.0), 0.0)
        group_s = np.where(n.chunks > 1, n.final * t.first_backward_s - caught_up_s, -np.inf)
        by_turns_s = np.maximum(t.first_backward_s, group_s) - np.minimum(n.turns - 1, self.up) * t.weight_s
        num_weights = np.maximum(n.left - self.up, 0) + 1
        laps_s = (n.chunks - 1) * ((n.stages - n.group) * self.input_s + self.lap_s)
        by_laps_s = laps_s - (n.turns - num_weights) * t.weight_s + t.first_backward_s
        return np.asarray(self.up * (self.input_s + self.hop_s) + np.maximum(by_turns_s, by_laps_s))

    def stays_s(self) -> tuple[Column, Column, Column]:
        """Seconds gained between fill and drain on the last stage and on others, and of weight gradients that the last stage still owes.

        The first `pp - 1` turns have no weight gradients, so in these turns a chain may go down and up again without a loss.
        """
        n, up, hop_s, visit_s, first_s = self.n, self.up, self.hop_s, self.visit_s, self.times.first_s
        hops = np.minimum(up - 1, n.left - 1)
        dip_s = np.where(hops >= 1, 2 * hops * hop_s + (n.m - hops) * visit_s, -np.inf)
        full_dip_s = 2 * up * hop_s + (n.m - up) * visit_s + first_s - self.times.last_weight_s
        dip_s = np.maximum(dip_s, np.where(n.left >= n.stages, full_dip_s, -np.inf))
        on_last_s = np.maximum(n.m * visit_s, dip_s) + n.m * self.times.last_weight_s
        on_middle_s = np.where(hops >= 1, 2 * hops * hop_s + 2 * visit_s, -np.inf)
        on_first_s = (n.m - n.stages) * first_s
        on_first_s = np.where(n.stages > 2, np.maximum(on_first_s, np.minimum(first_s, 0.0)), on_first_s)
        off_last_s = np.maximum(on_middle_s, np.where(n.left > up, 2 * up * hop_s + 2 * visit_s + on_first_s, -np.inf))
        owed_s = np.where(n.chunks > 1, 0.0, np.minimum(n.m, n.stages) * self.times.last_weight_s)
        return on_last_s, off_last_s, owed_s

    def short_of_last_s(self, hops: Column) -> Column:
        """Seconds gained by staying on the middle stage that is `hops` before the last, and ending there or on the first."""
        n, t, up, hop_s = self.n, self.times, self.up, self.hop_s
        down_s = hops * (self.input_s + hop_s) - np.minimum(hops, n.left) * t.forward_s + self.visit_s
        dip_s = np.maximum(2 * (np.minimum(up - 1, n.left - 1) - hops) * hop_s, 0.0)
        dip_s = np.maximum(dip_s, np.where(n.left >= n.stages, 2 * (up - hops) * hop_s + t.first_s, 0.0))
        drained_s = (up - hops) * (self.input_s + hop_s) - np.minimum(up - hops, n.turns - 1) * t.weight_s + t.first_backward_s
        return np.where((hops >= 1) & (hops < up), down_s + dip_s + np.maximum(drained_s, 0.0), -np.inf)

    def on_first_s(self) -> Column:
        """Seconds gained by staying on the first stage until its last weight gradient."""
        n, t = self.n, self.times
        passed = np.minimum(self.up, n.left)
        own_s = n.m * t.first_backward_s + (n.m - passed) * t.first_forward_s
        down_s = self.up * (self.input_s + self.hop_s) - passed * t.forward_s + self.visit_s
        return down_s + own_s + (n.chunks - 1) * self.wait_s - self.entry_s

    def laps_s(self) -> Column:
        """Seconds gained if messages take longer than half the weight gradients: lap after lap, with one weight gradient in each."""
        n, t, up = self.n, self.times, self.up
        num_laps, rest = _divided(n.left + n.stages, n.stages)
        extras_s = ((num_laps - 1) * t.first_s + num_laps * self.visit_s) / n.chunks + np.minimum(rest, 1) * np.minimum(self.visit_s, 0.0)
        messages_s = 2 * ((num_laps - 1) * up + np.maximum(rest - 1, 0)) * self.hop_s
        drained_s = (n.chunks - 1) * np.maximum((n.stages - n.group) * self.input_s + self.lap_s - n.group * t.weight_s, 0.0)
        down_s = up * (self.input_s + self.hop_s) + t.first_backward_s + drained_s
        gained_s = messages_s + extras_s + down_s - (n.left + 1 - num_laps) * t.weight_s
        return np.where(2 * self.hop_s > t.weight_s, gained_s, -np.inf)


def smallest_group(num_micro_batches: Count, pp: Count) -> NDArray[np.int64]:
    """Micro-batches that pass through a chunk before it is the next chunk's turn: the smallest number that Megatron-LM accepts.

    Each group, also the last one, must fill the pipeline; otherwise operations would wait for each other in a circle.
    If there are too few micro-batches to fill it (Megatron-LM refuses this), they are one group.
    """
    m, stages = np.broadcast_arrays(np.asarray(num_micro_batches, dtype=np.int64), np.asarray(pp, dtype=np.int64))
    flat_m, flat_stages = m.ravel(), stages.ravel()
    group: NDArray[np.int64] = np.minimum(flat_m, flat_stages)
    unsettled = np.arange(group.size)
    while unsettled.size:
        rest = flat_m[unsettled] % group[unsettled]
        unsettled = unsettled[(rest > 0) & (rest < flat_stages[unsettled])]
        group[unsettled] += 1
    return group.reshape(m.shape)


def peak_in_flight(
    num_micro_batches: Count, pp: Count, vp: Count, stage: Count, zero_bubble: bool | NDArray[np.bool_] = False
) -> NDArray[np.int64]:
    """The largest number of chunk activations that `stage` holds at once: forward has run, backward has not ended.

    A schedule that postpones weight gradients holds activations until these are computed, and therefore equally many on every stage.
    """
    m, stages, chunks, p = (np.asarray(x, dtype=np.int64) for x in (num_micro_batches, pp, vp, stage))
    zero = np.asarray(zero_bubble)
    ahead = np.where(zero, stages - 1, np.where(chunks > 1, 2, 1) * (stages - 1 - p))
    waiting = np.where(chunks > 1, (chunks - 1) * smallest_group(m, stages), 0)
    return np.asarray(np.minimum(m * chunks, ahead + waiting + 1))


def layers_in_flight(
    layers: Count, num_chunks: Count, vp: Count, group: Count, short_at_the_end: bool | NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Layers whose activations a stage holds with `num_chunks` chunks in flight, if its `vp` chunks share `layers` unevenly.

    Forwards go through the chunks in groups of micro-batches, so that the first chunk is held more often than the last. The chunks with
    fewer layers come first, beside the embedding, or with `short_at_the_end` last, beside the loss.
    """
    count, held, chunks, size = (np.asarray(x, dtype=np.int64) for x in (layers, num_chunks, vp, group))
    each = count // chunks
    rest = count - each * chunks  # a division takes numpy as long as all the rest
    turns = held // (size * chunks)
    left = held - turns * (size * chunks)
    at_the_front = np.minimum(left, rest * size)
    at_the_back = np.maximum(left - (chunks - rest) * size, 0)
    return np.asarray(each * held + turns * size * rest + np.where(short_at_the_end, at_the_front, at_the_back))
