"""All that is known of a plan, gathered once for the pages and plots that show it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.layout import Layouts
from meshwright.plan.explain import Explanation, explain
from meshwright.plan.plan import Plan, stack_of
from meshwright.plan.trace import LaidOut
from meshwright.predict.footprint import recipe_for, stages
from meshwright.predict.outcome import Outcome, outcome
from meshwright.predict.prediction import Prediction, exact_step_s, predict
from meshwright.predict.software import Software
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.units import seconds

SAME = 1e-6  # relative difference below which two predictions are one

CORRECTION = "exact schedule"  # less the closed form


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step as a chart shows it."""

    name: str
    colour: str  # of colours.PALETTE, or a part of the step
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A plan with its prediction, its outcome and its explanation."""

    plan: Plan
    stack: Software
    prediction: Prediction  # of one row
    takes: Outcome
    explanation: Explanation
    stages: list[dict[str, Any]]  # see footprint.stages
    laid_out: LaidOut
    notes: tuple[str, ...]

    @property
    def parts(self) -> list[Part]:
        """The parts of the step that take time, in the order of step.PARTS; they add up to the plan's step time."""
        shown = [Part(PART_NAMES[part], part, self.plan.parts_s[part]) for part in PARTS if self.plan.parts_s.get(part, 0.0) > 0]
        rest_s = self.plan.step_time_s - sum(self.plan.parts_s.values())
        if abs(rest_s) > SAME * self.plan.step_time_s:
            shown.append(Part(CORRECTION, "bubble", rest_s))
        return shown

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of a replica and step."""
        return int(self.prediction.detail.num_micro_batches[0])

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all replicas a second, at the plan's step time."""
        return self.plan.workload.tokens_per_step / self.plan.step_time_s

    @property
    def mfu(self) -> float:
        """Model FLOP/s over the peak, at the plan's step time."""
        return float(self.prediction.mfu[0] * self.prediction.step_time_s[0]) / self.plan.step_time_s


def facts_of(plan: Plan, stack: Software | None = None, takes: Outcome | None = None) -> Facts:
    """Price the plan again, under the software it names or the one given, and gather what there is to show."""
    stack = stack or stack_of(plan)
    job = (plan.model, plan.cluster, plan.workload)
    prediction = predict(*job, Layouts.of([plan.layout]), stack)
    as_planned = replace(prediction, time_to_train_s=np.array([plan.time_to_train_s]))
    takes = takes or outcome(as_planned, plan.cluster, plan.workload)
    return Facts(
        plan=plan,
        stack=stack,
        prediction=prediction,
        takes=takes,
        explanation=explain(*job, plan.layout, stack),
        stages=stages(plan.model, plan.workload, plan.layout, recipe_for(plan.workload.precision, plan.cluster.accelerator)),
        laid_out=LaidOut.of(plan, stack),
        notes=(*_notes(plan, stack, prediction), *takes.notes),
    )


def _notes(plan: Plan, stack: Software, prediction: Prediction) -> tuple[str, ...]:
    """What a reader should know before trusting the numbers."""
    notes = [stack.note, prediction.interval.note]
    now_s = exact_step_s(prediction, plan.layout)
    if abs(now_s - plan.step_time_s) > SAME * plan.step_time_s:
        notes.append(f"the plan states a step of {seconds(plan.step_time_s)}; {stack.name} gives {seconds(now_s)} today: make it again")
    workload = plan.workload
    if workload.convergence and workload.model not in ("", plan.model.name):
        notes.append(f"{workload.name} is defined for {workload.model}: its samples to the target are taken for {plan.model.name} too")
    return tuple(note for note in notes if note)
