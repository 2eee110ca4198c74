"""Experts as a check: is the layout that a submission's engineers chose among the best the planner finds?

Every row is asked with its own accelerators, batch, sequence and precision, and with what its stack could do; the planner then chooses
the degrees. A gap is time the planner thinks was left: where it is large, either the engineers knew something the model does not, or
the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layout, Layouts
from meshwright.plan.features import Features
from meshwright.plan.search import search
from meshwright.predict import exact_step_s, predict
from meshwright.software import FittedValues, Software, fitted_values
from meshwright.step import PARTS

# What the stacks of a round could do, with no degrees in it. Megatron-LM as NVIDIA's MLPerf code ran it: the distributed optimizer, no
# recomputing, 1F1B and interleaving, ring context parallelism (from v5.0 on), and its two rank orders. Whether CUDA graphs and the overlap
# of tensor traffic were on stands in the row: they are switches of a submission, not degrees.
MEGATRON = Features(
    zero_stages=(1,),
    recompute=("none",),
    schedules=("1f1b", "interleaved"),
    cp_kinds=("ring",),
    orders=(("tp", "cp", "pp", "dp"), ("tp", "cp", "dp", "pp")),
)
MAX_CP_OF_ROUND = {"v3.0": 1, "v3.1": 1, "v4.0": 1, "v4.1": 1}  # context parallelism came to this code with v5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One row: what was chosen, what the planner would choose, and where the difference lies."""

    run: MeasuredRun
    chosen_s: float  # both predicted, from the exact schedule
    best_s: float
    best: Layout
    num_layouts: int
    difference: str  # the part of the step in which most of the gap lies

    @property
    def gap_pct(self) -> float:
        """Percent by which the chosen layout is slower than the best found."""
        return (self.chosen_s / self.best_s - 1) * 100


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


def median_gap_pct(choices: Sequence[Choice]) -> float:
    """Median over the rows of the percent left."""
    return float(np.median([choice.gap_pct for choice in choices]))


def _features(run: MeasuredRun) -> Features:
    # Tensor parallelism must finish before the layer goes on: none of these stacks let it leave the scale-up domain.
    domain = run.cluster.tiers[0].num_accelerators
    return replace(
        MEGATRON,
        max_tp=domain,
        max_cp=MAX_CP_OF_ROUND.get(run.round, 0),
        overlap_tp=run.layout.overlap_tp,
        cuda_graphs=run.layout.cuda_graphs,
    )


def _choice(run: MeasuredRun, stack: Software) -> Choice:
    found = search(run.model, run.cluster, run.workload, stack=stack, features=_features(run), keep=1)
    best = found.layouts[0]
    chosen = predict(run.model, run.cluster, run.workload, Layouts.of([run.layout]), stack)
    other = predict(run.model, run.cluster, run.workload, Layouts.of([best]), stack)
    gaps = {part: float(chosen.parts[part][0] - other.parts[part][0]) for part in PARTS}
    part = max(gaps, key=lambda name: gaps[name])
    chosen_s = exact_step_s(chosen, run.layout)
    return Choice(
        run=run,
        chosen_s=chosen_s,
        best_s=min(found.step_time_s[0], chosen_s),
        best=best if found.step_time_s[0] <= chosen_s else run.layout,
        num_layouts=found.num_layouts,
        difference=f"{part.replace('_', ' ')} {gaps[part] / chosen_s:+.1%} of the step" if gaps[part] > 0 else "none",
    )
