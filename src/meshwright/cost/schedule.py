"""Pipeline schedules as data, and their exact timing: when every operation of every stage starts and ends.

A schedule says in which order each stage runs its operations, and what each operation waits for. It depends on counts only, so it is built
once and cached. `evaluate` then goes through it with any times. `pipeline.py` has the closed form of the same quantities.

Words: a stage is one pipeline rank; a chunk is one of the `num_chunks` pieces of the model on it (interleaving); an operation is the
forward (F), backward (B) or, if it is separate, weight-gradient (W) pass of one micro-batch through one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.cost.pipeline import smallest_group
from meshwright.errors import InputError, nearest

FORWARD, BACKWARD, WEIGHT = 0, 1, 2
KIND_NAMES = ("F", "B", "W")

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_NO_SEND, _HOP, _WRAP = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """The operations of a step in an order that respects every dependency; column `i` of each array is operation `i`.

    Operations of one stage are in the order in which that stage runs them.
    """

    num_stages: int
    num_chunks: int
    num_micro_batches: int
    stage: Ints
    chunk: Ints
    micro_batch: Ints
    kind: Ints  # FORWARD, BACKWARD or WEIGHT
    waits_for: Ints  # operation on another stage whose result must have arrived, or -1
    message: Ints  # how the result is sent: not at all, to the next stage, or over the wrap from the last stage to the first
    peak_in_flight: Ints  # per stage: the largest number of chunk activations held at once
    loop: tuple[list[int], list[int]]  # stage and waits_for + 1 as lists, for the loop in `evaluate`


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
    """Seconds of a message between consecutive chunks.

    An overlapped message delays only its receiver. A blocking message also occupies the sender, once per operation that sends:
    the receiver's half coincides with its own next send, as in Megatron's `send_forward_recv_backward`.
    """

    hop_s: float = 0.0
    wrap_s: float | None = None  # from the last stage to the first, to the next chunk; None: like any hop
    overlapped: bool = True

    def by_message(self) -> Floats:
        """Seconds by kind of message: none, hop, wrap."""
        return np.array([0.0, self.hop_s, self.hop_s if self.wrap_s is None else self.wrap_s])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """A schedule with its times. Per-operation arrays follow the schedule's columns."""

    schedule: Schedule
    makespan_s: float
    start_s: Floats
    end_s: Floats  # includes the message if it is blocking
    busy_s: Floats  # per stage

    @property
    def idle_s(self) -> Floats:
        """Seconds for which each stage waits within the makespan: its bubble."""
        return self.makespan_s - self.busy_s


def evaluate(
    schedule: Schedule, forward_s: ArrayLike, backward_s: ArrayLike, *, weight_s: ArrayLike | None = None, hops: Hops | None = None
) -> Timeline:
    """Start and end of every operation in seconds, given times `[stage][chunk]`.

    An operation starts when its stage has finished the previous one and its input has arrived. `backward_s` is the whole
    backward; a schedule that splits it also needs `weight_s`, the part that computes weight gradients.
    """
    durations_s, delays_s = _times(schedule, forward_s, backward_s, weight_s, hops or Hops())
    free_s = [0.0] * schedule.num_stages
    arrived_s = [0.0]  # entry 0: nothing to wait for
    starts_s: list[float] = []
    stages, waits = schedule.loop
    for stage, wait, duration_s, delay_s in zip(stages, waits, durations_s.tolist(), delays_s.tolist(), strict=True):
        start_s = free_s[stage]
        ready_s = arrived_s[wait]
        if ready_s > start_s:
            start_s = ready_s
        starts_s.append(start_s)
        end_s = start_s + duration_s
        free_s[stage] = end_s
        arrived_s.append(end_s + delay_s)
    start = np.array(starts_s)
    return Timeline(
        schedule=schedule,
        makespan_s=max(free_s),
        start_s=start,
        end_s=start + durations_s,
        busy_s=np.bincount(schedule.stage, weights=durations_s, minlength=schedule.num_stages).astype(np.float64),
    )


def shared_makespan_s(
    schedule: Schedule,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    *,
    fastest: float,
    weight_s: ArrayLike | None = None,
    hops: Hops | None = None,
) -> float:
    """Seconds of the schedule where a stage that waits leaves its cores to the others.

    Times are those of stages that all work at once. Where only some do, each of them is so much faster, up to `fastest` times: then each of
    its ranks has a core of its own. A message takes what it takes, however many stages work meanwhile.
    """
    durations_s, delays_s = (times.tolist() for times in _times(schedule, forward_s, backward_s, weight_s, hops or Hops()))
    queues = [iter(np.flatnonzero(schedule.stage == stage).tolist()) for stage in range(schedule.num_stages)]
    waits = schedule.loop[1]
    at_work: list[tuple[float, int, int]] = []  # what each stage must have done by the end of its operation, the stage, the operation
    on_the_way: list[tuple[float, int]] = []  # when a result arrives, and of which operation
    arrived, waiting = {0}, dict[int, tuple[int, int]]()  # by what is waited for: the stage, and its operation
    now_s = done_s = 0.0  # done_s: what a stage that always worked would have done, at the speed that all share

    def go_on(stage: int) -> None:
        operation = next(queues[stage], None)
        if operation is not None and waits[operation] in arrived:
            heappush(at_work, (done_s + durations_s[operation], stage, operation))
        elif operation is not None:
            waiting[waits[operation]] = stage, operation

    for stage in range(schedule.num_stages):
        go_on(stage)
    while at_work or on_the_way:
        speed = min(schedule.num_stages / max(len(at_work), 1), fastest)
        ends_s = now_s + (at_work[0][0] - done_s) / speed if at_work else math.inf
        if on_the_way and on_the_way[0][0] <= ends_s:
            arrives_s, result = heappop(on_the_way)
            done_s, now_s = done_s + (arrives_s - now_s) * speed, arrives_s
            arrived.add(result)
            if result in waiting:
                stage, operation = waiting.pop(result)
                heappush(at_work, (done_s + durations_s[operation], stage, operation))
        else:
            done_s, stage, operation = heappop(at_work)
            now_s = ends_s
            heappush(on_the_way, (now_s + delays_s[operation], operation + 1))
            go_on(stage)
    return now_s


def _times(
    schedule: Schedule, forward_s: ArrayLike, backward_s: ArrayLike, weight_s: ArrayLike | None, hops: Hops
) -> tuple[Floats, Floats]:
    """Seconds for which each operation occupies its stage, and seconds after that until its result has arrived."""
    forward, backward = (_grid(schedule, name, s) for name, s in (("forward_s", forward_s), ("backward_s", backward_s)))
    weight = np.zeros_like(backward)
    if schedule.kind.max() == WEIGHT:
        if weight_s is None:
            raise InputError("a schedule that splits the backward needs the weight-gradient time", where="weight_s", fix="give weight_s")
        weight = _grid(schedule, "weight_s", weight_s)
        if (weight > backward).any():
            raise InputError(
                "weight_s is larger than backward_s, of which it is a part", where="weight_s", fix="give backward_s with weight_s in it"
            )
    by_kind = np.stack([forward, backward - weight, weight])
    durations_s = by_kind[schedule.kind, schedule.stage, schedule.chunk]
    messages_s = hops.by_message()[schedule.message]
    if hops.overlapped:
        return durations_s, messages_s
    return durations_s + messages_s, np.zeros_like(messages_s)


def _grid(schedule: Schedule, name: str, seconds: ArrayLike) -> Floats:
    """Seconds `[stage][chunk]` as an array of the schedule's shape; one number is used for every chunk of every stage."""
    shape = (schedule.num_stages, schedule.num_chunks)
    values = np.asarray(seconds, dtype=np.float64)
    if values.shape not in ((), shape):
        raise InputError(
            f"{name} has shape {values.shape}, not {shape}",
            where=name,
            fix="give one number, or a row for each stage with a number for each chunk",
        )
    if not (values >= 0).all():
        raise InputError(f"{name} holds {values.min()}, which is no duration", where=name, fix="give seconds of zero or more")
    return np.broadcast_to(values, shape)


def one_f_one_b(num_stages: int, num_micro_batches: int) -> Schedule:
    """1F1B: stage `p` runs ahead by `num_stages - p - 1` forwards, then alternates (PipeDream-flush, as in Megatron-LM)."""
    return _build(num_stages, 1, num_micro_batches, group=num_micro_batches, lead=1, splits_backward=False)


def interleaved(num_stages: int, num_chunks: int, num_micro_batches: int, group: int | None = None) -> Schedule:
    """Interleaved 1F1B as Megatron-LM runs it: groups of micro-batches pass through a stage's chunks in turn.

    Stage `p` runs ahead by `2 (num_stages - p - 1) + (num_chunks - 1) group` forwards. One chunk is plain 1F1B.
    """
    if num_chunks == 1:
        return one_f_one_b(num_stages, num_micro_batches)
    group = _checked_group(num_stages, num_micro_batches, group)
    return _build(num_stages, num_chunks, num_micro_batches, group=group, lead=2, splits_backward=False)


def zero_bubble(num_stages: int, num_chunks: int, num_micro_batches: int, group: int | None = None) -> Schedule:
    """Zero bubble: 1F1B in which stage `p` postpones weight gradients by `p` backwards.

    With one chunk this is ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024): no stage holds more than the first stage of 1F1B.
    With several it is the interleaved form (ZB1P; `ScheduleInterleavedZeroBubble` in PyTorch).
    """
    group = _checked_group(num_stages, num_micro_batches, group)
    return _build(num_stages, num_chunks, num_micro_batches, group=group, lead=1, splits_backward=True)


def schedule_named(name: str, num_stages: int, num_chunks: int, num_micro_batches: int) -> Schedule:
    """The schedule that a layout calls `name`."""
    if name not in _BY_NAME:
        raise InputError(f"no schedule named {name!r}", where="layout.schedule", fix=nearest(name, _BY_NAME))
    return _BY_NAME[name](num_stages, num_chunks, num_micro_batches)


def _one_chunk(num_stages: int, num_chunks: int, num_micro_batches: int) -> Schedule:
    if num_chunks != 1:
        raise InputError(f"1f1b has one chunk per stage, not {num_chunks}", where="layout.vp", fix="use vp=1, or schedule=interleaved")
    return one_f_one_b(num_stages, num_micro_batches)


_BY_NAME: Mapping[str, Callable[[int, int, int], Schedule]] = {
    "1f1b": _one_chunk,
    "interleaved": interleaved,
    "zero-bubble": zero_bubble,
}


def _checked_group(num_stages: int, num_micro_batches: int, group: int | None) -> int:
    _check_counts(num_stages=num_stages, num_micro_batches=num_micro_batches)
    smallest = int(smallest_group(num_micro_batches, num_stages))
    if group is None:
        return smallest
    rest = num_micro_batches % group if group > 0 else 0
    if not smallest <= group <= num_micro_batches or 0 < rest < num_stages:
        raise InputError(
            f"groups of {group} do not carry {num_micro_batches} micro-batches through {num_stages} stages",
            where="group",
            fix=f"choose a size from {smallest} to {num_micro_batches} that leaves a rest of 0, or of {num_stages} or more",
        )
    return group


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} is {count}, and a pipeline has at least one", where=name, fix="give 1 or more")


@dataclass(frozen=True, slots=True)
class _Turns:
    """The order in which (chunk, micro-batch) pairs pass through a stage, the same on all: group by group, chunk by chunk."""

    chunk: Ints
    micro_batch: Ints
    group_size: Ints  # size of the turn's group: the micro-batch was in the previous chunk so many turns earlier


def _turns(num_chunks: int, num_micro_batches: int, group: int) -> _Turns:
    firsts = np.arange(0, num_micro_batches, group)
    sizes = np.minimum(group, num_micro_batches - firsts)
    blocks = np.repeat(sizes, num_chunks)  # one block of turns per group and chunk
    within = np.arange(num_chunks * num_micro_batches) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    return _Turns(
        chunk=np.repeat(np.tile(np.arange(num_chunks), len(sizes)), blocks),
        micro_batch=np.repeat(np.repeat(firsts, num_chunks), blocks) + within,
        group_size=np.repeat(blocks, blocks),
    )


@lru_cache(maxsize=64)
def _build(num_stages: int, num_chunks: int, num_micro_batches: int, *, group: int, lead: int, splits_backward: bool) -> Schedule:
    """The schedule in which stage `p` runs `lead (num_stages - p - 1) + (num_chunks - 1) group` forwards ahead."""
    _check_counts(num_stages=num_stages, num_chunks=num_chunks, num_micro_batches=num_micro_batches)
    turns = _turns(num_chunks, num_micro_batches, group)
    num_kinds = 3 if splits_backward else 2
    orders = []
    for stage in range(num_stages):
        ahead = min(lead * (num_stages - stage - 1) + (num_chunks - 1) * group, len(turns.chunk))
        orders.append(_stage_order(len(turns.chunk), ahead, num_kinds, weight_delay=stage))
    waits_for, message = _dependencies(turns, num_stages, num_chunks, num_kinds)
    walk = _topological(orders, waits_for.tolist())
    return _in_walk_order(walk, turns, num_stages, num_chunks, num_kinds, waits_for, message)


def _stage_order(num_turns: int, num_ahead: int, num_kinds: int, weight_delay: int) -> Ints:
    """One stage's operations in the order it runs them, each as `kind * num_turns + turn`.

    Forward `num_ahead + k` comes just before backward `k`, and the weight gradient of `k` just after backward `k + weight_delay`.
    """
    turn = np.arange(num_turns)
    ranks = [3 * (turn - num_ahead), 3 * turn + 1, 3 * (turn + weight_delay) + 2]
    return np.argsort(np.concatenate(ranks[:num_kinds]), kind="stable")


def _dependencies(turns: _Turns, num_stages: int, num_chunks: int, num_kinds: int) -> tuple[Ints, Ints]:
    """For each operation, numbered `(stage, kind, turn)`: what it waits for on another stage (or -1), and the message it sends.

    The forward of a backward, and the backward of a weight gradient, ran earlier on the same stage, so the order already ensures them.
    """
    num_turns = len(turns.chunk)
    turn = np.arange(num_turns)
    number = np.arange(num_stages * num_kinds * num_turns).reshape(num_stages, num_kinds, num_turns)
    waits_for = np.full_like(number, -1)
    message = np.full_like(number, _NO_SEND)
    enters, leaves = turns.chunk > 0, turns.chunk < num_chunks - 1  # whether it comes from, or goes to, another chunk of the stage
    before = np.maximum(turn - turns.group_size, 0)
    # Backward turns mirror the forward ones: the last chunk goes first, so turn `t` is in chunk `num_chunks - 1 - chunk[t]`.
    for kind, first, last, step in ((FORWARD, 0, num_stages - 1, 1), (BACKWARD, num_stages - 1, 0, -1)):
        for stage in range(first + step, last + step, step):
            waits_for[stage, kind] = number[stage - step, kind]
            message[stage - step, kind] = _HOP
        waits_for[first, kind] = np.where(enters, number[last, kind, before], -1)
        message[last, kind] = np.where(leaves, _WRAP, _NO_SEND)
    return waits_for.ravel(), message.ravel()


def _topological(orders: Sequence[Ints], waits_for: Sequence[int]) -> list[int]:
    """All operations in an order in which each comes after what it waits for; stages take turns, and each goes as far as it can."""
    per_stage = len(orders[0])
    queues = [(order + stage * per_stage).tolist() for stage, order in enumerate(orders)]
    done = bytearray(per_stage * len(orders) + 1)
    done[-1] = True  # entry -1 stands for nothing to wait for
    walk: list[int] = []
    positions = [0] * len(orders)
    while len(walk) < per_stage * len(orders):
        before = len(walk)
        for stage, queue in enumerate(queues):
            position = positions[stage]
            while position < per_stage and done[waits_for[queue[position]]]:
                done[queue[position]] = True
                position += 1
            walk += queue[positions[stage] : position]
            positions[stage] = position
        assert len(walk) > before, "operations wait for each other in a circle"
    return walk


def _in_walk_order(
    walk: list[int], turns: _Turns, num_stages: int, num_chunks: int, num_kinds: int, waits_for: Ints, message: Ints
) -> Schedule:
    operation = np.array(walk)
    stage, kind, turn = np.unravel_index(operation, (num_stages, num_kinds, len(turns.chunk)))
    place = np.empty(len(walk) + 1, dtype=np.int64)
    place[operation] = np.arange(len(walk))
    place[-1] = -1
    waits = place[waits_for[operation]]
    chunk = np.where(kind == FORWARD, turns.chunk[turn], num_chunks - 1 - turns.chunk[turn])
    return Schedule(
        num_stages=num_stages,
        num_chunks=num_chunks,
        num_micro_batches=len(turns.chunk) // num_chunks,
        stage=stage,
        chunk=chunk,
        micro_batch=turns.micro_batch[turn],
        kind=kind,
        waits_for=waits,
        message=message[operation],
        peak_in_flight=_peaks(stage, kind, num_stages, num_kinds),
        loop=(stage.tolist(), (waits + 1).tolist()),
    )


def _peaks(stage: Ints, kind: Ints, num_stages: int, num_kinds: int) -> Ints:
    """Per stage: the largest number of activations held. The last kind of pass frees them."""
    change = np.where(kind == FORWARD, 1, np.where(kind == num_kinds - 1, -1, 0))
    return np.array([np.cumsum(change[stage == p]).max() for p in range(num_stages)])
