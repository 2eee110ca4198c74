"""Energy of weeks, the mean of all seeds, by the watts that the ledger counts: training as the mean step draws, all else as waiting."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.ledger.energy import energy_of
from meshwright.ledger.timeline import SPARES, Span
from meshwright.plan.plan import Plan
from meshwright.simulator.outlook import Outlook


def weeks_energy_j(plan: Plan, seen: Outlook) -> float | None:
    """Joules at the wall of a run of these weeks; None where the accelerator's power is not stated."""
    return energy_of(list(_spans(plan, seen)), plan).wall_j


def _spans(plan: Plan, seen: Outlook) -> Iterator[Span]:
    """The mean run as three stretches: steps, standing still, and the spares beside them."""
    had, campaign, step = seen.weeks, seen.campaign, seen.step
    wall_s, steps_s = float(np.mean(had.wall_s)), float(np.mean(had.work_s + had.lost_s))
    total_s = sum(step.parts_s.values())
    parts = {part: steps_s * part_s / total_s for part, part_s in step.parts_s.items() if part_s > 0}
    yield Span(start_s=0.0, end_s=steps_s, what="steps", uses_s=parts, num_gpus=plan.layout.num_ranks)
    if wall_s > steps_s:
        yield Span(start_s=steps_s, end_s=wall_s, what="restart", uses_s={"recovering": wall_s - steps_s}, num_gpus=plan.layout.num_ranks)
    if num_spares := campaign.num_spares * campaign.accelerators_per_node:
        yield Span(start_s=0.0, end_s=wall_s, what=SPARES, uses_s={"spare": wall_s}, num_gpus=num_spares)
