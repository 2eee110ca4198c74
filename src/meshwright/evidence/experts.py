"""Experts as a check: is the layout that the engineers of a submission chose among the best that the planner finds?

Every row is planned with its own accelerators, batch, sequence length and precision, for its own stack; the planner then chooses the
degrees, as `meshwright plan --stack` does. The gap is the time that the planner thinks could be saved. If it is large, either the engineers
knew something that the model does not, or the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layout, Layouts
from meshwright.plan.features import Features
from meshwright.plan.noise import plan_noise
from meshwright.plan.search import search
from meshwright.plan.stack import STACKS
from meshwright.predict.exact import exact_prediction
from meshwright.predict.prediction import predict
from meshwright.predict.software import FittedValues, Software, fitted_values
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import per_cent

# The features of its stack that NVIDIA's MLPerf code used, without degrees: the distributed optimizer, no recompute, ring context
# parallelism. `plan.stack` says what the stack itself can do. The row says whether CUDA graphs and the overlap of tensor traffic were on:
# they are switches of a submission, not degrees.
MEGATRON = Features(zero_stages=(1,), recompute=("none",), cp_kinds=("ring",))
# What a round did not have yet, according to its own code (mlcommons/training_results_vX, NVIDIA/benchmarks/gpt3):
# - weights only in fp8: `fp8_params` is in the settings of v4.0, and not before; earlier rounds also keep a copy in bf16;
# - layers that do not divide by stages and chunks: Megatron-LM could count embedding and loss as layers only after v4.1 (the question
#   how to do it, NVIDIA/Megatron-LM issue 1304, is from 2024-11; that round closed in 2024-10);
# - context parallelism: the first rows with it are from v5.0.
COPIED = {"low_weights": False}
EVEN = {"uneven_split": False, "max_cp": 1}
LACKING: Mapping[str, Mapping[str, Any]] = {"v3.0": COPIED | EVEN, "v3.1": COPIED | EVEN, "v4.0": EVEN, "v4.1": EVEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row: what was chosen, what the planner would choose, and where the difference is."""

    run: MeasuredRun
    chosen_s: float  # both predicted, from the exact schedule
    best_s: float
    best: Layout
    best_unhidden_s: float  # of the best layout whose tensor traffic is not hidden
    num_layouts: int
    difference: str  # the part of the step in which most of the gap lies

    @property
    def gap_pct(self) -> float:
        """Percent by which the chosen layout is slower than the best found."""
        return (self.chosen_s / self.best_s - 1) * 100

    @property
    def unhidden_gap_pct(self) -> float:
        """The same compared with layouts that hide no tensor traffic: these stacks hide it well only in shapes that were tuned by hand."""
        return max(self.chosen_s / self.best_unhidden_s - 1, 0.0) * 100


def expert_choices(
    runs: Sequence[MeasuredRun], values: FittedValues | None = None, done: Callable[[], None] = lambda: None
) -> tuple[Choice, ...]:
    """Every run's layout beside the planner's."""
    values = values or fitted_values()
    found = []
    for run in runs:
        found.append(_choice(run, values.software(run.release)))
        done()
    return tuple(found)


def _features(run: MeasuredRun) -> Features:
    # A layer must wait for tensor parallelism: all of these stacks keep it inside the scale-up domain.
    domain = run.cluster.tiers[0].num_accelerators
    return replace(
        MEGATRON,
        max_tp=domain,
        overlap_tp=run.layout.overlap_tp,
        cuda_graphs=run.layout.cuda_graphs,
        **LACKING.get(run.round, {}),
    )


def _choice(run: MeasuredRun, stack: Software) -> Choice:
    features = _features(run)
    job = run.job(stack)
    runner = STACKS["bridge" if run.workload.adapters else "megatron"]  # Megatron-LM itself does not train adapters
    found = search(job, features=features, keep=1, stack=runner, noise=plan_noise())
    unhidden = search(job, features=replace(features, overlap_tp=False), keep=1, stack=runner, noise=plan_noise())
    best = found.layouts[0]
    chosen, other = (exact_prediction(predict(job, Layouts.of([layout]))) for layout in (run.layout, best))
    gaps = {part: float(chosen.parts[part][0] - other.parts[part][0]) for part in PARTS}
    part = max(gaps, key=lambda name: gaps[name])
    chosen_s = float(chosen.step_s[0])
    return Choice(
        run=run,
        chosen_s=chosen_s,
        best_s=min(found.step_s[0], chosen_s),
        best_unhidden_s=max(unhidden.step_s[0], found.step_s[0]),
        best=best if found.step_s[0] <= chosen_s else run.layout,
        num_layouts=found.num_layouts,
        difference=f"{PART_NAMES[part]} {per_cent(gaps[part] / chosen_s, '+.1f')} of the step" if gaps[part] > 0 else "none",
    )
