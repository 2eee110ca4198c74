"""What one rank of a plan measured when it was run alone, and the forecast with that in place of the model's compute.

Communication stays as it is predicted. Stages that were not run are taken to be off by as much as the one that was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.predict.exact import LONG, MOST_OPERATIONS, Cells, cells, more_layers, retimed, timeline_of
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.footprint import StageMemory
from meshwright.predict.forecast import Forecast, forecast_from
from meshwright.predict.step import StepParts

Grid = NDArray[np.float64]
EXPOSED_WITHIN = ("exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTime:
    """Seconds that one micro-batch computes in a chunk of the model."""

    chunk: int
    num_layers: int
    forward_s: float
    backward_s: float  # with weight gradients that were put off
    weight_s: float  # of the backward: weight gradients that were put off; 0 where none are

    @property
    def both_s(self) -> float:
        """Forward and backward."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes of one rank at the peak of a step; the parts add up to the peak."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int  # held between two operations, beside the parts above
    working_bytes: int  # that the operation at the peak takes beyond all this
    peak_bytes: int
    peak_at: str  # the operation

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by part."""
        return {part: getattr(self, f"{part}_bytes") for part in ("weights", "gradients", "optimizer", "activations", "working")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What one rank measured; seconds are medians, without what stood in for communication."""

    rank: int
    stage: int
    device: str
    device_type: str  # cuda or cpu
    torch: str
    date: str
    num_steps: int  # that were timed
    num_micro_batches: int
    chunks: tuple[ChunkTime, ...]
    end_s: float  # after the last backward: norms and sums
    optimizer_s: float
    step_s: float
    stand_in_s: float  # of a step, beside `step_s`: what stood in for communication
    memory: RankMemory
    idle_s: float | None  # of a step, between kernels; None where there are none
    crowd: float = 1.0  # what seconds were multiplied by, where the plan's ranks share the cores that this one had for itself
    first_step_s: float | None = None  # with what is compiled and chosen in it; None where memory was counted meanwhile

    @property
    def compute_s(self) -> float:
        """Seconds of a step in forwards and backwards."""
        return self.num_micro_batches * sum(chunk.both_s for chunk in self.chunks)


def predicted_chunks(forecast: Forecast, stage: int) -> tuple[ChunkTime, ...]:
    """What the model says that one micro-batch computes in the chunks of a stage, without communication."""
    detail, layout = forecast.detail, forecast.layout
    found, layers = _computed(cells(detail, layout), detail, layout), _layers(detail, layout)
    weight = found.weight_s if found.weight_s is not None else np.zeros_like(found.forward_s)
    return tuple(
        ChunkTime(
            chunk=chunk,
            num_layers=round(layers[stage, chunk]),
            forward_s=float(found.forward_s[stage, chunk]),
            backward_s=float(found.backward_s[stage, chunk]),
            weight_s=float(weight[stage, chunk]),
        )
        for chunk in range(layout.vp)
    )


def predicted_memory(stage: StageMemory) -> dict[str, float]:
    """Predicted bytes by the parts of a rehearsal: loss and buffers are what an operation takes while it runs."""
    parts = {part: stage.parts[part] for part in MEMORY_PARTS if part not in ("loss", "buffers")}
    return {**parts, "working": stage.loss_bytes + stage.buffers_bytes}


def rehearsed_forecast(forecast: Forecast, rehearsals: Sequence[Rehearsal]) -> Forecast:
    """The forecast with measured chunks, end of a step and optimizer; other stages off by as much as the first of those that ran."""
    detail, layout, old = forecast.detail, forecast.layout, forecast.prediction.parts
    whole = cells(detail, layout)
    computed = _computed(whole, detail, layout)
    renewed = _renewed(computed, rehearsals)
    moved = Cells(
        whole.forward_s - computed.forward_s + renewed.forward_s,
        whole.backward_s - computed.backward_s + renewed.backward_s,
        renewed.weight_s,
    )
    count = _num_timed(detail, layout)
    ratio = timeline_of(moved, detail, layout, 0, count).makespan_s / timeline_of(whole, detail, layout, 0, count).makespan_s
    end_s = float(np.ravel(detail.end_s)[0])
    within = sum(old[part] for part in (*EXPOSED_WITHIN, "compute", "bubble", "overhead")) - end_s
    exposed = sum(old[part] for part in EXPOSED_WITHIN)
    stages_s = (renewed.forward_s + renewed.backward_s).sum(axis=1)
    compute = np.minimum(detail.num_micro_batches * stages_s.max() * detail.stretch, within * ratio - exposed)
    parts = {
        **old,
        "compute": compute,
        "bubble": np.maximum(within * ratio - exposed - compute, 0.0),
        "optimizer": np.array([max(one.optimizer_s for one in rehearsals)]),
        "overhead": np.array([max(one.end_s for one in rehearsals)]),
    }
    return forecast_from(retimed(forecast.prediction, float(sum(parts.values())[0]), parts), layout, forecast.terms)


def _num_timed(detail: StepParts, layout: Layout) -> int:
    """Micro-batches of the step whose schedule is compared: all of them, or some rounds of a step too long to be timed whole."""
    count = int(detail.num_micro_batches[0])
    return count if 2 * layout.pp * layout.vp * count <= MOST_OPERATIONS else LONG * layout.pp + count % layout.pp


def _layers(detail: StepParts, layout: Layout) -> Grid:
    """Layers of every chunk, by stage and chunk."""
    return float(np.ravel(detail.split.middle)[0]) / layout.vp + more_layers(detail, layout, 0)


def _computed(whole: Cells, detail: StepParts, layout: Layout) -> Cells:
    """The cells without communication: what layers expose, what senders stand still for, and exchanges at the ends."""
    layers, layer, times = _layers(detail, layout), detail.layer, detail.times
    per_chunk = float(np.ravel(detail.split.middle)[0]) / layout.vp
    host_s = float(np.ravel(detail.pricer.operation_s)[0]) if layout.pp > 1 else 0.0
    found = []
    for way, (cell, chunk_s) in enumerate(((whole.forward_s, times.forward_s), (whole.backward_s, times.backward_s))):
        layer_s, exposed_s = (float(np.ravel(each)[0]) for each in (layer.total_s(way), layer.exposed_s(way)))
        sent_s = float(np.ravel(chunk_s)[0]) - per_chunk * layer_s - host_s
        told = layers * exposed_s + sent_s
        told[-1, -1] += float(np.ravel(detail.pricer.ends_tp_s())[0]) / 2
        found.append(np.maximum(cell - told, 0.0))
    return Cells(found[0], found[1], whole.weight_s)


def _renewed(computed: Cells, rehearsals: Sequence[Rehearsal]) -> Cells:
    """The cells as they were measured; of stages that were not, in proportion."""
    first = rehearsals[0]
    measured = {one.stage: one.chunks for one in rehearsals}

    def grid(predicted: Grid, name: str) -> Grid:
        said = float(predicted[first.stage].sum())
        found = predicted * (sum(getattr(chunk, name) for chunk in first.chunks) / said if said else 1.0)
        for stage, chunks in measured.items():
            found[stage] = [getattr(chunk, name) for chunk in chunks]
        return np.asarray(found)

    weight = None if computed.weight_s is None else grid(computed.weight_s, "weight_s")
    return replace(
        computed, forward_s=grid(computed.forward_s, "forward_s"), backward_s=grid(computed.backward_s, "backward_s"), weight_s=weight
    )
