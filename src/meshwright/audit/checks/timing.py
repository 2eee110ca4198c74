"""Compares steps times step time with the time of the whole run."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim
from meshwright.audit.figures import count, figure, percent
from meshwright.audit.verdict import CONSISTENT, MISLEADING, Statement
from meshwright.audit.work import samples_of

ROUNDING = 0.05  # medians of steps, of samples and of times may come from different runs
MOST_REST = 0.5  # evaluations, checkpoints and starts take less than half of any run on record


def check(claim: Claim) -> Iterator[Statement]:
    """A statement where a claim gives samples, batch, step time and the time of the run."""
    run = claim.run
    samples = samples_of(run)
    if not (samples and run.global_batch and run.step_s and run.duration_s):
        return
    steps = samples / run.global_batch
    stepping_s = steps * run.step_s.value
    rest = 1 - stepping_s / run.duration_s.value
    line = f"{count(steps)} steps x {run.step_s.value:g} s = {figure(stepping_s)} s of {figure(run.duration_s.value)} s"
    if rest < -ROUNDING:
        why = f"its steps alone take {figure(stepping_s)} s, more than the {figure(run.duration_s.value)} s it claims"
        yield Statement(about="time by its own numbers", verdict=MISLEADING, why=why, arithmetic=(line,))
    elif rest > MOST_REST:
        why = f"its steps take {figure(stepping_s)} s of the {figure(run.duration_s.value)} s it claims; the rest is not explained"
        yield Statement(about="time by its own numbers", verdict=MISLEADING, why=why, arithmetic=(line,))
    else:
        why = f"steps take {percent(1 - rest)} of the time; evaluations and the rest take what is left"
        yield Statement(about="time by its own numbers", verdict=CONSISTENT, why=why, arithmetic=(line,))
