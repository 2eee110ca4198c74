"""The closed form of a training step: Inputs and Layouts (columns) -> seconds of every part.

Parts are those of every predicted, simulated and measured step: compute, exposed time per axis, bubble, optimizer, data, overhead.
They add up to the step. All columns broadcast: one job with many layouts, or as many jobs as layouts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.pipeline import ChunkTimes, busiest_stage_s, pipeline_s
from meshwright.layout import OPS, Layouts
from meshwright.predict.inputs import DENSE_MLP, EXPERT, UP_PROJECTION, Inputs
from meshwright.predict.measured import Measured
from meshwright.predict.measured_prices import MeasuredPricer
from meshwright.predict.prices import Layer, Pricer
from meshwright.predict.software import Constants
from meshwright.predict.stages import Split, stage_layers
from meshwright.record.entries import PARTS as PARTS

Column = NDArray[np.float64]
TOKEN_BYTES = 4.0  # of one training token in storage


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The traffic of a step on one accelerator as if nothing hid it, by the prices of the step itself; one row per layout."""

    seconds: dict[str, Column]  # by axis
    layer: dict[str, tuple[Column, Column]]  # tp, cp, ep: of one micro-batch in one layer, forward and backward
    ends_tp_s: Column  # of one micro-batch at the ends of the model, half of it each way
    message_s: Column  # between stages
    gathered_s: Column  # of dp: weights
    reduced_s: Column  # of dp: gradients
    waited_s: Column  # of the exposed dp, what the step waits for; the rest is compute that hidden traffic slows
    contention: Column  # of dp that is hidden, what is paid all the same


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds of every part of a step, and what an evaluation and a drawing need beside them; one row per layout."""

    seconds: dict[str, Column]  # by PARTS
    times: ChunkTimes
    message_s: Column
    stretch: Column  # seconds of the step for one of its pipeline: slowest chip, cores that waiting ranks leave, what sharing costs
    end_s: Column  # of the overhead: at the end of the step
    layer: Layer  # of one micro-batch
    recomputed_flops: Column  # per token, beyond the model's
    split: Split
    busiest_layers: Column  # on the stage with the most work
    num_micro_batches: NDArray[np.int64]
    pricer: Pricer

    @property
    def step_s(self) -> Column:
        """Seconds of the whole step."""
        return np.asarray(np.sum([self.seconds[part] for part in PARTS], axis=0))

    @property
    def offload_s(self) -> tuple[Column, Column]:
        """Seconds of a step that activations move to the host's memory and back, and of them those that compute waits for."""
        times = self.num_micro_batches * self.busiest_layers
        return np.asarray(times * 2 * self.pricer.offload_s()), np.asarray(times * self.layer.offload_s * self.stretch)

    def carried(self) -> Carried:
        """The step's traffic as if nothing hid it, from the prices that the parts were made of."""
        bare = self.pricer.unhidden()
        layer, between = bare.layer(), bare.between(self.split)
        seconds = _in_layers_s(bare, layer, self.busiest_layers)
        seconds["pp"] = _num_operations(bare) * self.message_s
        return Carried(
            seconds={axis: each_s * self.stretch for axis, each_s in seconds.items()} | {"dp": between.gathered_s + between.reduced_s},
            layer={axis: (way[0] * self.stretch, way[1] * self.stretch) for axis, way in layer.exposed.items()},
            ends_tp_s=bare.ends_tp_s() * self.stretch,
            message_s=self.message_s * self.stretch,
            gathered_s=between.gathered_s,
            reduced_s=between.reduced_s,
            waited_s=self.pricer.data_parallel_s(self.split, self.pricer.layer(), contended=False),
            contention=self.pricer.paid_share(),
        )


def price(inputs: Inputs, layouts: Layouts, constants: Constants, measured: Measured | None = None) -> StepParts:
    """The parts of a step for every row, in closed form; `measured`: by what a profile says, in place of the fitted constants."""
    inputs = _without_padding(inputs)
    pricer = Pricer(inputs, layouts, constants) if measured is None else MeasuredPricer(inputs, layouts, constants, measured)
    split = stage_layers(inputs.num_layers, layouts.pp, layouts.vp, layouts.first_stage_layers, layouts.last_stage_layers)
    layer, head, embedding_s = pricer.layer(), pricer.head_s(), pricer.embedding_s()
    message_s = pricer.message_s()
    times = _chunk_times(pricer, split, layer, head, embedding_s, message_s)
    m = pricer.num_micro_batches
    zero_bubble = layouts.is_zero_bubble
    overlapped = layouts.overlap_pp > 0
    total_s = pipeline_s(m, layouts.pp, layouts.vp, times, np.where(overlapped, message_s, 0.0), zero_bubble=zero_bubble)
    busy_s = busiest_stage_s(m, layouts.pp, layouts.vp, times)
    stretch = slowest_of(inputs.num_accelerators, constants.chip_spread) * pricer.core_share(times, message_s)
    stretch = stretch * np.ones_like(total_s)
    # The busiest stage's time is compute, what its layers expose, and per operation the host's time and its messages.
    layers = _busiest_layers(split, layer, head, embedding_s, layouts)
    exposed = _in_layers_s(pricer, layer, layers)
    host_s = _num_operations(pricer) * pricer.operation_s
    messages_s, end_s = _messages_s(pricer, split, layer, message_s), pricer.step_s()
    compute_s = busy_s - host_s - messages_s - sum(exposed.values())
    seconds = {
        "compute": compute_s * stretch,
        **{f"exposed_{axis}": exposed[axis] * stretch for axis in exposed},
        "exposed_pp": messages_s * stretch,
        "exposed_dp": pricer.data_parallel_s(split, layer),
        "bubble": np.where(layouts.pp > 1, np.maximum(total_s - busy_s, 0.0), 0.0) * stretch,
        "optimizer": pricer.optimizer_s(split) * pricer.slowdown,
        "overhead": end_s + host_s * stretch,
    }
    read_s = inputs.seq_len * np.asarray(inputs.global_batch) * TOKEN_BYTES / inputs.storage_bytes_per_s
    seconds["data"] = np.maximum(read_s - sum(seconds.values()), 0.0) * np.ones_like(pricer.tokens)
    return StepParts(
        seconds=seconds,
        times=times,
        message_s=message_s,
        stretch=stretch,
        end_s=end_s,
        layer=layer,
        recomputed_flops=_recomputed_flops(inputs, layouts),
        split=split,
        busiest_layers=layers,
        num_micro_batches=m,
        pricer=pricer,
    )


def _in_layers_s(pricer: Pricer, layer: Layer, layers: Column) -> dict[str, Column]:
    """Seconds of a step that tp, cp and ep add on a stage of so many layers, and tp at the ends of the model."""
    seconds = {axis: pricer.num_micro_batches * layers * sum(ways) for axis, ways in layer.exposed.items()}
    seconds["tp"] = seconds["tp"] + pricer.num_micro_batches * pricer.ends_tp_s()
    return seconds


def _num_operations(pricer: Pricer) -> Column:
    """Operations of a stage of a pipeline in a step."""
    return np.where(pricer.pp > 1, 2.0 * pricer.num_micro_batches * pricer.vp, 0.0)


def _messages_s(pricer: Pricer, split: Split, layer: Layer, message_s: Column) -> Column:
    """Seconds of a step that the senders of messages between stages stand still for."""
    forward_s, backward_s = _sent_s(pricer, split, layer, message_s)
    return np.asarray(_num_operations(pricer) * (forward_s + backward_s) / 2)


def _sent_s(pricer: Pricer, split: Split, layer: Layer, message_s: Column) -> tuple[Column, Column]:
    """Seconds that one message forward and one backward keep their senders, behind the chunk that follows."""
    per_chunk, (forward_s, backward_s) = split.middle / pricer.vp, pricer.hiding_s(layer)
    return pricer.sent_s(message_s, per_chunk * forward_s), pricer.sent_s(message_s, per_chunk * backward_s)


def slowest_of(num_accelerators: Any, chip_spread: Any) -> Any:
    """How much longer the slowest of so many chips takes than the slowest of eight.

    The largest of N normal deviates lies about sqrt(2 ln N) spreads out; chips of one kind differ in what their power cap allows.
    """
    return 1 + np.asarray(chip_spread) * (np.sqrt(2 * np.log(np.maximum(num_accelerators, 8))) - np.sqrt(2 * np.log(8)))


def _without_padding(inputs: Inputs) -> Inputs:
    """The inputs without matrices that no row has and tiers that repeat the one below: they cost time and add nothing."""
    used = np.asarray(inputs.matrix_count).any(axis=1)
    matrices = {f.name: getattr(inputs, f.name)[used] for f in fields(Inputs) if f.name.startswith("matrix_")}
    names = ("tier_size", "tier_bytes_per_s", "tier_latency_s", "tier_is_scale_up", "tier_is_hashed", "tier_is_fabric")
    columns = [getattr(inputs, name) for name in names]
    last = len(columns[0])
    while last > 1 and all(np.array_equal(column[last - 1], column[last - 2]) for column in columns):
        last -= 1
    return replace(inputs, **matrices, **{name: column[:last] for name, column in zip(names, columns, strict=True)})


def _chunk_times(
    pricer: Pricer, split: Split, layer: Layer, head: tuple[Column, Column], embedding_s: Column, message_s: Column
) -> ChunkTimes:
    """Seconds of a middle chunk, and what the first and last chunk take beyond it."""
    piped = pricer.pp > 1
    sent = _sent_s(pricer, split, layer, message_s)
    each = [np.where(piped, pricer.operation_s + sent_s, 0.0) for sent_s in sent]
    per_chunk = split.middle / pricer.vp
    first, last = (np.where(piped, count - split.middle, 0.0) for count in (split.first, split.last))
    extra = np.asarray(pricer.q.prediction_layers, dtype=np.float64)
    projection = pricer.projection_s()
    tail = [last * layer.total_s(way) + head[way] + extra * (layer.total_s(way) + projection[way] + head[way]) for way in (0, 1)]
    return ChunkTimes(
        forward_s=per_chunk * layer.total_s(0) + each[0],
        backward_s=per_chunk * layer.total_s(1) + each[1],
        weight_s=per_chunk * layer.weight_s,
        first_forward_s=first * layer.total_s(0) + embedding_s,
        first_backward_s=first * layer.total_s(1) + embedding_s,
        first_weight_s=first * layer.weight_s,
        last_forward_s=tail[0],
        last_backward_s=tail[1],
        last_weight_s=last * layer.weight_s,
    )


def _busiest_layers(split: Split, layer: Layer, head: tuple[Column, Column], embedding_s: Column, layouts: Layouts) -> Column:
    """Layers on the stage with the most work."""
    each_s = layer.total_s(0) + layer.total_s(1)
    ends_s = (split.first * each_s + 2 * embedding_s, split.last * each_s + head[0] + head[1])
    middle_s = np.where(layouts.pp > 2, split.middle * each_s, -np.inf)
    busiest = np.argmax(np.stack([ends_s[0], middle_s, ends_s[1]]), axis=0)
    return np.where(layouts.pp == 1, split.middle, np.choose(busiest, [split.first, split.middle, split.last])).astype(np.float64)


def _visits(inputs: Inputs) -> NDArray[np.float64]:
    """How many of a matrix's kind a token meets: of routed experts, those that it goes to."""
    return np.where(inputs.matrix_cut == EXPERT, np.asarray(inputs.experts_per_token, dtype=np.float64), 1.0)


def _recomputed_flops(inputs: Inputs, layouts: Layouts) -> Column:
    """FLOPs a token costs again because activations were dropped."""
    per_layer = 2 * (
        np.asarray(inputs.layer_parameters) + inputs.experts_per_token * np.asarray(inputs.expert_parameters) / inputs.num_experts
    )
    full = inputs.num_layers * (per_layer + inputs.attention_flops)
    some = inputs.num_layers * np.asarray(inputs.attention_flops)
    products = 2 * inputs.matrix_columns * inputs.matrix_inner * inputs.matrix_count
    up = np.sum(np.where(inputs.matrix_part == UP_PROJECTION, products, 0.0), axis=0) * layouts.recomputes("mla_up_proj")
    mlp = np.sum(np.where(inputs.matrix_part == DENSE_MLP, products, 0.0), axis=0) * layouts.recomputes("mlp")
    ops = np.sum(products * _visits(inputs) * inputs.matrix_repeated, axis=0) * layouts.recomputes(OPS)
    parts = layouts.recomputes("selective") * some + inputs.num_layers * (up + mlp + ops)
    return np.where(layouts.recomputes_all, full * np.ones(len(layouts)), parts)
