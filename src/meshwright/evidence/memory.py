"""Predicted against measured peak memory: 43 runs of cut-down models on one node of eight B200.

`memory_runs.csv` names a model of the catalogue and says how the model of the run differs from it: fewer layers, and other
settings of the launch scripts (16 key-value heads in the 405B model, one dense layer in DeepSeek-V3, no prediction
layer). The measured figure is `torch.cuda.max_memory_allocated()`, the largest of all ranks, in GiB; Megatron-LM with
Transformer Engine 2.11, bf16, fp32 gradients, distributed optimizer, fused cross-entropy, context parallelism by
all-to-all. No constant is fitted on these rows, but they were used to find out which tensors that software allocates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from meshwright.cost.memory import BF16_BYTES
from meshwright.describe.load import load_model
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.table import Row, read_table
from meshwright.layout import Layout, Layouts
from meshwright.predict.footprint import MOMENTS, footprint, recipe_for, stages
from meshwright.units import GIB

RUNS = Path(__file__).with_name("memory_runs.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One run: its peak as measured and as predicted, and the moment of the predicted peak."""

    name: str
    measured_bytes: float
    predicted_bytes: float
    stage: int
    moment: str

    @property
    def error_pct(self) -> float:
        """Predicted relative to measured; positive if too much was predicted."""
        return 100 * (self.predicted_bytes / self.measured_bytes - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvidence:
    """All runs of a file, and how far off they are."""

    rows: tuple[MemoryRow, ...]

    @property
    def mean_abs_error_pct(self) -> float:
        """Mean of the absolute errors."""
        return float(np.mean([abs(row.error_pct) for row in self.rows]))

    @property
    def bias_pct(self) -> float:
        """Mean of the errors with their signs."""
        return float(np.mean([row.error_pct for row in self.rows]))

    @property
    def worst_pct(self) -> float:
        """The largest error, with its sign."""
        return max((row.error_pct for row in self.rows), key=abs)


def logged_peaks(runs: Sequence[MeasuredRun]) -> MemoryEvidence:
    """Runs whose logs state their peak memory: that of rank 0, which writes the log, and therefore of the first stage."""
    return MemoryEvidence(rows=tuple(_logged(run) for run in runs if run.peak_memory_bytes))


def _logged(run: MeasuredRun) -> MemoryRow:
    first = stages(run.model, run.workload, run.layout, recipe_for(run.workload.precision, run.cluster.accelerator))[0]
    name = f"{run.name}, {run.layout.degrees}"
    return MemoryRow(
        name=name, measured_bytes=run.peak_memory_bytes, predicted_bytes=first.peak_bytes, stage=first.stage, moment=first.peak_at
    )


def memory_evidence(path: Path = RUNS) -> MemoryEvidence:
    """Every run of the file, predicted."""
    return MemoryEvidence(rows=tuple(_predicted(row) for row in read_table(path).rows))


def _predicted(row: Row) -> MemoryRow:
    workload = Workload(
        name=row.filled("name"),
        model=row.filled("model"),
        seq_len=row.count("seq_len"),
        global_batch=row.count("global_batch"),
        precision=row.filled("precision"),
    )
    fused = replace(recipe_for(workload.precision), logit_bytes=BF16_BYTES)
    priced = footprint(_model(row), workload, Layouts.of([_layout(row)]), fused)
    worst = int(priced.stage_peak_bytes[:, 0].argmax())
    return MemoryRow(
        name=workload.name,
        measured_bytes=row.positive("memory_gib") * GIB,
        predicted_bytes=float(priced.peak_bytes[0]),
        stage=int(priced.worst_stage[0]),
        moment=MOMENTS[int(priced.moment[worst, 0])],
    )


def _model(row: Row) -> Model:
    """The catalogue's model, reduced as in the run."""
    model = load_model(row.filled("model")).cut_to(row.count("num_layers"))
    experts = model.experts and replace(model.experts, num_dense_layers=row.count("num_dense_layers"))
    return replace(model, num_kv_heads=row.count("num_kv_heads"), num_prediction_layers=0, experts=experts)


def _layout(row: Row) -> Layout:
    return Layout(
        tp=row.count("tp"),
        cp=row.count("cp"),
        pp=row.count("pp"),
        vp=row.count("vp"),
        dp=row.count("dp"),
        ep=row.count("ep"),
        micro_batch=row.count("micro_batch"),
        cp_kind=row.filled("cp_kind"),
    )
