"""The predicted step of a plan as a Chrome trace, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A process is a pipeline stage (one accelerator of it), a thread is one of its streams. Operations are at the times of the exact schedule.
What the closed form adds to the schedule is drawn so that the last event ends with the predicted step:

- the first weights are gathered before the first operation, and the last gradients are reduced after the last one; the contention of
  hidden traffic between replicas, and the slowest chip, make all operations longer by the same factor;
- traffic within layers is one slice per axis and operation, at the start of the operation, with its total seconds;
- optimizer and host work come last, on all stages at once, because the norm of the gradient needs all ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.schedule import BACKWARD, FORWARD, KIND_NAMES, WEIGHT, Timeline
from meshwright.errors import InputError
from meshwright.files import write_whole
from meshwright.predict import software as sw
from meshwright.predict.exact import MOST_OPERATIONS, timeline
from meshwright.predict.forecast import Forecast
from meshwright.predict.step import Carried, StepParts
from meshwright.record.entries import PART_NAMES

STREAMS = ("compute", "communication: tp, cp, ep", "communication: pp", "communication: dp")
COMPUTE, WITHIN, STAGES, REPLICAS = range(len(STREAMS))
FIRST_THREAD = 100_000  # above the number of any process in a trace
MAX_BUCKETS = 32  # slices of one chunk's gradients or weights; if there are more buckets, only so many are drawn

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slice:
    """Something that occupies one stream of one stage."""

    stage: int
    stream: int
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow from a message to the operation that waits for it."""

    from_stage: int
    start_s: float
    to_stage: int
    end_s: float


def write_trace(forecast: Forecast, path: Path) -> None:
    """Write the predicted step as a trace in JSON."""
    write_whole(path, json.dumps(trace(forecast), separators=(",", ":")) + "\n")


def trace(forecast: Forecast) -> dict[str, Any]:
    """The predicted step in the Trace Event Format: metadata, complete events and flows, times in microseconds."""
    step = LaidOut.of(forecast)
    events = [*_metadata(forecast), *_complete(step.slices()), *_arrows(step.flows())]
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "plan": forecast.job.name,
            "layout": str(forecast.layout),
            "software": forecast.job.software.name,
            "notes": list(forecast.notes),
            "step_s": forecast.step_s,
            "origin": "predicted by meshwright, not measured",
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replicas:
    """Seconds of traffic between replicas in a step, on one accelerator, hidden or not."""

    gather_s: float  # to gather weights
    reduce_s: float  # to reduce gradients
    gathers_once: bool  # before the first forwards; else with every operation
    reduces_once: bool  # after the last backwards; else with every micro-batch
    parameters: float  # on the fullest rank

    def share(self, once: bool, seconds: float) -> float:
        """`seconds` as a share of all traffic between replicas; 0 for traffic that does not happen once a step."""
        return seconds / (self.gather_s + self.reduce_s) if once and seconds > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaidOut:
    """A predicted step laid out in time, with the traffic of its operations. All moments are seconds from the start of the step."""

    forecast: Forecast
    schedule: Timeline
    replicas: _Replicas
    within_s: dict[str, tuple[float, float]]  # axis -> seconds of a layer, forward and backward
    ends_tp_s: float  # seconds of tp in the last chunk, forward and backward each
    layers: Floats  # stage x chunk
    message_s: float
    stretch: float  # seconds of the step per second of the bare schedule
    data_s: float  # when the batch has arrived
    weights_s: float  # when the first weights have arrived too: the first operation starts
    drained_s: float  # when the last operation has ended
    reduced_s: float  # when the last gradients have arrived
    optimized_s: float

    @staticmethod
    def of(forecast: Forecast) -> LaidOut:
        """The laid-out step of a forecast."""
        _check_length(forecast)
        priced, parts_s = forecast.detail, forecast.parts
        carried = priced.carried()
        replicas = _replicas(forecast, priced, carried)
        schedule = timeline(forecast.detail, forecast.layout)
        waited_s = min(float(carried.waited_s[0]), parts_s["exposed_dp"])
        head_s = waited_s * replicas.share(replicas.gathers_once, replicas.gather_s)
        tail_s = waited_s * replicas.share(replicas.reduces_once, replicas.reduce_s)
        data_s, optimizer_s = parts_s["data"], parts_s["optimizer"]
        host_s = min(float(priced.end_s[0]), parts_s["overhead"])
        drained_s = forecast.step_s - host_s - optimizer_s - tail_s
        return LaidOut(
            forecast=forecast,
            schedule=schedule,
            replicas=replicas,
            within_s=_within_s(forecast, carried),
            ends_tp_s=float(carried.ends_tp_s[0]) / 2,
            layers=_layers(forecast, priced),
            message_s=float(carried.message_s[0]),
            stretch=(drained_s - data_s - head_s) / schedule.makespan_s,
            data_s=data_s,
            weights_s=data_s + head_s,
            drained_s=drained_s,
            reduced_s=drained_s + tail_s,
            optimized_s=forecast.step_s - host_s,
        )

    @property
    def start_s(self) -> Floats:
        """When each operation starts."""
        return self.weights_s + self.stretch * self.schedule.start_s

    @property
    def end_s(self) -> Floats:
        """When each operation ends."""
        return self.weights_s + self.stretch * self.schedule.end_s

    def slices(self) -> Iterator[Slice]:
        """Everything that takes time, stage by stage."""
        for stage in range(self.forecast.layout.pp):
            yield from _operations(self, stage)
            yield from _messages(self, stage)
            yield from _between_replicas(self, stage)
            yield from _ends(self, stage)

    def flows(self) -> Iterator[Flow]:
        """An arrow for every message between stages."""
        order, start_s = self.schedule.schedule, self.start_s
        sent_s = _sent_s(self)
        for index in np.flatnonzero(order.waits_for >= 0):
            sender = int(order.waits_for[index])
            yield Flow(int(order.stage[sender]), float(sent_s[sender]), int(order.stage[index]), float(start_s[index]))


def _check_length(forecast: Forecast) -> None:
    """Raise an error for a step with more operations than can be laid out one by one."""
    layout, m = forecast.layout, forecast.num_micro_batches
    num_operations = 2 * layout.pp * layout.vp * m
    if num_operations > MOST_OPERATIONS:
        raise InputError(
            f"a step of {num_operations:,} operations ({m:,} micro-batches) is too long to draw",
            where="workload.global_batch",
            fix="plan a smaller batch, or larger micro-batches",
        )


def _replicas(forecast: Forecast, priced: StepParts, carried: Carried) -> _Replicas:
    """The traffic between replicas."""
    return _Replicas(
        gather_s=float(carried.gathered_s[0]),
        reduce_s=float(carried.reduced_s[0]),
        gathers_once=forecast.layout.zero_stage < 3,
        reduces_once=forecast.layout.zero_stage < 2,
        parameters=float(sum(column[0] for column in priced.pricer.parameters(priced.split))),
    )


def _within_s(forecast: Forecast, carried: Carried) -> dict[str, tuple[float, float]]:
    """Seconds that each axis within a layer takes, hidden or not, forward and backward."""
    found = {axis: (float(forward[0]), float(backward[0])) for axis, (forward, backward) in carried.layer.items()}
    return {axis: pair for axis, pair in found.items() if getattr(forecast.layout, axis) > 1 and sum(pair) > 0}


def _layers(forecast: Forecast, priced: StepParts) -> Floats:
    """Layers in each chunk of each stage."""
    layout, split = forecast.layout, priced.split
    first, middle, last = (float(column[0]) for column in (split.first, split.middle, split.last))
    cells = np.full((layout.pp, layout.vp), middle / layout.vp)
    if layout.pp > 1:
        cells[0, 0] += first - middle
        cells[-1, -1] += last - middle
    return cells


def _operations(step: LaidOut, stage: int) -> Iterator[Slice]:
    """The operations of a stage, and below each the traffic of tp, cp and ep in it."""
    order, start_s, end_s = step.schedule.schedule, step.start_s, step.end_s
    for i in np.flatnonzero(order.stage == stage):
        kind, chunk, micro_batch = int(order.kind[i]), int(order.chunk[i]), int(order.micro_batch[i])
        layers = float(step.layers[stage, chunk])
        name = f"{KIND_NAMES[kind]} chunk {chunk} mb {micro_batch}"
        yield Slice(stage, COMPUTE, name, float(start_s[i]), float(end_s[i]), {"layers": layers})
        if kind != WEIGHT:
            ends_s = step.ends_tp_s if (stage + 1, chunk + 1) == step.layers.shape else 0.0
            yield from _within(step, Slice(stage, WITHIN, name, float(start_s[i]), float(end_s[i])), kind, layers, ends_s)


def _within(step: LaidOut, operation: Slice, kind: int, layers: float, ends_s: float) -> Iterator[Slice]:
    """The traffic of tp, cp and ep in an operation, one after the other from its start; cut at its end."""
    stage, name, start_s, end_s = operation.stage, operation.name, operation.start_s, operation.end_s
    for axis, pair in step.within_s.items():
        seconds = pair[0 if kind == FORWARD else 1] * layers + (ends_s if axis == "tp" else 0.0)
        stop_s = min(start_s + seconds, end_s)
        yield Slice(stage, WITHIN, f"{axis}: {name}", start_s, stop_s, {"axis": axis, "traffic_us": _us(seconds)})
        start_s = stop_s


def _sent_s(step: LaidOut) -> Floats:
    """When the message of each operation is sent: after the operation if messages overlap, within it if they block."""
    blocking_s = 0.0 if step.forecast.layout.overlap_pp else step.message_s
    return np.maximum(step.end_s - blocking_s, step.start_s)


def _messages(step: LaidOut, stage: int) -> Iterator[Slice]:
    """The messages of a stage to its neighbours. One that would overlap the next is cut there; its arguments give its full length."""
    order, sent_s = step.schedule.schedule, _sent_s(step)
    senders = np.flatnonzero((order.stage == stage) & (order.message > 0))
    senders = senders[np.argsort(sent_s[senders], kind="stable")]
    starts_s = sent_s[senders]
    stops_s = np.minimum(starts_s + step.message_s, [*starts_s[1:], math.inf])
    for i, start_s, stop_s in zip(senders, starts_s.tolist(), stops_s.tolist(), strict=True):
        what = "activations" if order.kind[i] == FORWARD else "gradients"
        name = f"send {what} chunk {order.chunk[i]} mb {order.micro_batch[i]}"
        yield Slice(stage, STAGES, name, start_s, stop_s, {"axis": "pp", "message_us": _us(step.message_s)})


def _ends(step: LaidOut, stage: int) -> Iterator[Slice]:
    if step.data_s > 0:
        yield Slice(stage, COMPUTE, PART_NAMES["data"], 0.0, step.data_s)
    yield Slice(stage, COMPUTE, PART_NAMES["optimizer"], step.reduced_s, step.optimized_s)
    if step.optimized_s < step.forecast.step_s:  # with a profile, the measured ends of the model include it
        yield Slice(stage, COMPUTE, f"{PART_NAMES['overhead']}: norm, clipping, logging", step.optimized_s, step.forecast.step_s)


def _between_replicas(step: LaidOut, stage: int) -> Iterator[Slice]:
    """The gathers of weights and reductions of gradients of one rank of a stage: once a step, or with every operation (ZeRO 2 and 3)."""
    replicas = step.replicas
    if replicas.gather_s + replicas.reduce_s <= 0:
        return
    if replicas.gathers_once and replicas.gather_s > 0:
        yield from _gathers(step, stage)
    if not (replicas.gathers_once and replicas.reduces_once):
        yield from _with_every_operation(step, stage)
    if replicas.reduces_once:
        yield from _reductions(step, stage)


def _gathers(step: LaidOut, stage: int) -> Iterator[Slice]:
    """Gathers of weights, chunk by chunk in the order of their first forwards; each ends before it is needed."""
    firsts = _by_chunk(step, stage, FORWARD, last=False)
    names, needed_s, each_s = _buckets(step, firsts, step.replicas.gather_s, inside=step.start_s)
    before_s = np.cumsum(each_s)
    factor = min(1.0, float(((needed_s - step.data_s) / before_s).min()))  # the closed form may hide more than there is time for
    stops_s = step.data_s + factor * before_s
    for name, stop_s, seconds in zip(names, stops_s.tolist(), each_s.tolist(), strict=True):
        yield Slice(stage, REPLICAS, f"all-gather weights {name}", stop_s - factor * seconds, stop_s, _traffic_args(seconds))


def _reductions(step: LaidOut, stage: int) -> Iterator[Slice]:
    """Reductions of gradients, chunk by chunk as their last backwards end; all end before the optimizer starts."""
    kind = WEIGHT if (step.schedule.schedule.kind == WEIGHT).any() else BACKWARD
    lasts = _by_chunk(step, stage, kind, last=True)
    names, ready_s, each_s = _buckets(step, lasts, step.replicas.reduce_s, inside=step.end_s)
    after_s = np.cumsum(each_s[::-1])[::-1]  # seconds of a bucket and all that follow
    factor = min(1.0, float(((step.reduced_s - ready_s) / after_s).min()))
    what = "all-reduce gradients" if step.forecast.layout.zero_stage == 0 else "reduce-scatter gradients"
    free_s = 0.0
    for name, bucket_ready_s, seconds in zip(names, ready_s.tolist(), each_s.tolist(), strict=True):
        start_s = max(free_s, bucket_ready_s)
        free_s = start_s + factor * seconds
        yield Slice(stage, REPLICAS, f"{what} {name}", start_s, free_s, _traffic_args(seconds))


def _by_chunk(step: LaidOut, stage: int, kind: int, *, last: bool) -> list[int]:
    """The first or last operation of a kind in each chunk of a stage, in the order of time."""
    order = step.schedule.schedule
    mine = np.flatnonzero((order.stage == stage) & (order.kind == kind))
    found: dict[int, int] = {}
    for i in mine if last else mine[::-1]:  # later entries overwrite earlier ones
        found[int(order.chunk[i])] = int(i)
    return sorted(found.values(), key=lambda i: float(step.start_s[i]))


def _buckets(step: LaidOut, operations: Sequence[int], total_s: float, inside: Floats) -> tuple[list[str], Floats, Floats]:
    """Names, moments and seconds of the buckets of each chunk.

    In a pipeline all buckets of a chunk have the moment of its operation. Without one, layers follow each other within the operation.
    """
    per_chunk = step.replicas.parameters / len(operations) / sw.BUCKET_PARAMETERS
    count = min(max(math.ceil(per_chunk), 1), MAX_BUCKETS)
    names, moments = [], []
    for i in operations:
        chunk = int(step.schedule.schedule.chunk[i])
        names += [f"chunk {chunk}, bucket {bucket + 1} of {count}" for bucket in range(count)]
        moments += [float(inside[i])] * count
    if step.forecast.layout.pp == 1:
        (i,) = operations
        turns = np.arange(count) + (0 if inside[i] == step.start_s[i] else 1)
        moments = (step.start_s[i] + (step.end_s[i] - step.start_s[i]) * turns / count).tolist()
    return names, np.array(moments), np.full(len(names), total_s / len(names))


def _with_every_operation(step: LaidOut, stage: int) -> Iterator[Slice]:
    """Traffic that comes with each operation: ZeRO 3 gathers for forward and backward, ZeRO 2 and 3 reduce after each backward."""
    order, replicas = step.schedule.schedule, step.replicas
    each = order.num_micro_batches * order.num_chunks
    gather_s = 0.0 if replicas.gathers_once else replicas.gather_s / (2 * each)
    reduce_s = 0.0 if replicas.reduces_once else replicas.reduce_s / each
    for i in np.flatnonzero((order.stage == stage) & (order.kind != WEIGHT)):
        of = f"chunk {order.chunk[i]} mb {order.micro_batch[i]}"
        start_s, end_s = float(step.start_s[i]), float(step.end_s[i])
        backward = order.kind[i] == BACKWARD
        for name, seconds in (("all-gather weights", gather_s), ("reduce-scatter gradients", reduce_s if backward else 0.0)):
            if seconds > 0:
                stop_s = min(start_s + seconds, end_s)
                yield Slice(stage, REPLICAS, f"{name} {of}", start_s, stop_s, _traffic_args(seconds))
                start_s = stop_s


def _traffic_args(seconds: float) -> dict[str, Any]:
    return {"axis": "dp", "traffic_us": _us(seconds)}


def _us(seconds: float) -> float:
    """Microseconds, rounded to a nanosecond, so that equal moments stay equal."""
    return round(seconds * 1e9) / 1e3


def process_id(stage: int) -> int:
    """The process that represents a stage: numbers start at 1, because 0 is the idle process in Perfetto."""
    return 1 + stage


def thread_id(stage: int, stream: int) -> int:
    """The thread that represents a stream of a stage.

    Perfetto treats them as thread numbers of an operating system: each is unique in a trace, and a process's first thread has its number.
    """
    return FIRST_THREAD + len(STREAMS) * stage + stream


def _metadata(forecast: Forecast) -> Iterator[dict[str, Any]]:
    digits = len(str(forecast.layout.pp - 1))  # Perfetto sorts processes by name
    for stage in range(forecast.layout.pp):
        process = {"ph": "M", "pid": process_id(stage)}
        first = thread_id(stage, COMPUTE)
        yield {"name": "process_name", **process, "tid": first, "args": {"name": f"stage {stage:0{digits}} of {forecast.layout.pp}"}}
        yield {"name": "process_sort_index", **process, "tid": first, "args": {"sort_index": stage}}
        for stream, name in enumerate(STREAMS):
            thread = {**process, "tid": thread_id(stage, stream)}
            yield {"name": "thread_name", **thread, "args": {"name": name}}
            yield {"name": "thread_sort_index", **thread, "args": {"sort_index": stream}}


def _complete(slices: Iterator[Slice]) -> Iterator[dict[str, Any]]:
    """Slices as complete events, ordered within each thread."""
    for s in sorted(slices, key=lambda s: (s.stage, s.stream, s.start_s, s.end_s)):
        start_us = _us(s.start_s)
        duration_us = round(_us(s.end_s) - start_us, 3)
        event = {"name": s.name, "cat": STREAMS[s.stream].split(":")[0], "ph": "X"}
        place = {"pid": process_id(s.stage), "tid": thread_id(s.stage, s.stream)}
        yield {**event, **place, "ts": start_us, "dur": max(duration_us, 0.0), "args": s.args}


def _arrows(flows: Iterator[Flow]) -> Iterator[dict[str, Any]]:
    for number, flow in enumerate(flows):
        arrow = {"name": "message", "cat": "pp", "id": number}
        start = {"pid": process_id(flow.from_stage), "tid": thread_id(flow.from_stage, STAGES), "ts": _us(flow.start_s)}
        end = {"pid": process_id(flow.to_stage), "tid": thread_id(flow.to_stage, COMPUTE), "ts": _us(flow.end_s)}
        yield {**arrow, "ph": "s", **start}
        yield {**arrow, "ph": "f", "bp": "e", **end}
