"""Compares runs: parts predicted, simulated and measured; what cannot be compared, and which differences are noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.record.entries import PARTS
from meshwright.report.facts import RunFacts, is_unpredicted, predicted_parts_s

RUN_TO_RUN_PCT = 2.0  # between medians of three runs of one submission: 1.2957, 1.2701, 1.2704 s (MLPerf v6.0, 405B, 8,192 GB200)

APART = f"single runs of one job lie up to {RUN_TO_RUN_PCT:.0f} % apart"  # noise within a run does not include this


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTimes:
    """One part of the step, in seconds; None if it was not predicted, simulated or measured."""

    part: str
    predicted_s: float | None
    simulated_s: float | None
    measured_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The step time of a run compared with the first run of the same work."""

    label: str
    base: str
    change_pct: float  # of the median step time
    low_pct: float | None  # 95 %; None with too few steps
    high_pct: float | None
    text: str


def simulated_beside(facts: RunFacts, runs: Sequence[RunFacts]) -> RunFacts | None:
    """The first simulated run of the same plan, to show next to a trained one."""
    if facts.kind == "simulated":
        return None
    return next((other for other in runs if other.kind == "simulated" and _same_plan(facts, other)), None)


def _same_plan(one: RunFacts, other: RunFacts) -> bool:
    digest = one.run.header.plan_sha256
    return (digest is not None and digest == other.run.header.plan_sha256) or (one.plan is not None and one.plan == other.plan)


def parts_of(facts: RunFacts, simulated: RunFacts | None = None) -> list[PartTimes]:
    """The parts that take time in any of the columns, in the order of a prediction, and the time that no part accounts for."""
    predicted = predicted_parts_s(facts.plan, facts.kind) if facts.plan else {}
    measured = dict(facts.summary.mean_parts_s) if facts.kind == "measured" else {}
    source = facts if facts.kind == "simulated" else simulated
    imitated = dict(source.summary.mean_parts_s) if source else {}
    rows = [
        PartTimes(part=part, predicted_s=predicted.get(part), simulated_s=imitated.get(part), measured_s=measured.get(part))
        for part in PARTS
    ]
    return [row for row in rows if any((row.predicted_s, row.simulated_s, row.measured_s))]


def total_s(rows: Sequence[PartTimes], key: str, facts: RunFacts) -> float:
    """The sum of the parts; if some are not predicted, the predicted step."""
    if key == "predicted_s" and facts.plan and is_unpredicted(facts.plan, facts.kind):
        return facts.plan.step_s
    return sum(getattr(row, key) or 0.0 for row in rows)


def differing(runs: Sequence[RunFacts]) -> list[str]:
    """What differs between the runs, and what cannot be compared for that reason: one sentence each."""
    notes = []
    for what, value, lost in ASPECTS:
        groups: dict[str, list[str]] = {}
        for facts in runs:
            groups.setdefault(value(facts), []).append(facts.label)
        if len(groups) > 1:
            values = "; ".join(f"{named or 'unknown'} ({', '.join(labels)})" for named, labels in groups.items())
            notes.append(f"Different {what}: {values}. {lost}")
    return notes


Aspect = tuple[str, Callable[[RunFacts], str], str]
ASPECTS: tuple[Aspect, ...] = (
    (
        "models",
        lambda facts: facts.model,
        "Their losses, step times, seconds per sample and scaling cannot be compared; shares of the step and spreads can.",
    ),
    (
        "sequence lengths",
        lambda facts: f"{facts.run.header.sequence_length or 'unknown'}",
        "A sample is not the same work: losses and seconds per sample cannot be compared.",
    ),
    (
        "precisions",
        lambda facts: facts.plan.workload.precision if facts.plan else "",
        "Step times differ for that reason too; losses may.",
    ),
    (
        "kinds of run",
        lambda facts: facts.run.header.kind,
        "Simulated steps have no loss, and their times are predictions with noise, not measurements.",
    ),
)


def same_loss(runs: Sequence[RunFacts]) -> bool:
    """Whether the losses of all runs can be compared."""
    return len({(facts.model, facts.run.header.sequence_length) for facts in runs}) == 1 and bool(runs[0].model or len(runs) == 1)


def same_work(one: RunFacts, other: RunFacts) -> bool:
    """Whether a step of both runs does the same work."""
    return same_loss((one, other)) and one.batch == other.batch


def differences(runs: Sequence[RunFacts]) -> list[Difference]:
    """For each run after the first of its work: how its step time differs, and whether that is more than noise."""
    found = []
    for number, facts in enumerate(runs):
        base = next((other for other in runs[:number] if same_work(other, facts) and other.num_ranks == facts.num_ranks), None)
        if base is not None:
            found.append(difference(base, facts))
    return found


def difference(base: RunFacts, facts: RunFacts) -> Difference:
    """How a run's median step time differs from another's."""
    ratio = facts.summary.median_step_s / base.summary.median_step_s
    change = 100 * (ratio - 1)
    low = high = None
    if base.noise is not None and facts.noise is not None:
        low, high = (100 * (float(value) - 1) for value in np.percentile(facts.noise.draws_s / base.noise.draws_s, [2.5, 97.5]))
    names = f"{facts.label} against {base.label}"
    return Difference(
        label=facts.label, base=base.label, change_pct=change, low_pct=low, high_pct=high, text=f"{names}: {_sentence(change, low, high)}"
    )


def _sentence(change: float, low: float | None, high: float | None) -> str:
    """The difference of two step times in a sentence."""
    way = "slower" if change > 0 else "faster"
    if low is None or high is None:
        return f"{abs(change):.2f} % {way}; too few steady steps to tell that from noise."
    bounds = f"95 %: {low:+.2f} to {high:+.2f} %"
    if low <= 0 <= high:
        return f"the difference of {change:+.2f} % is below the noise within the runs ({bounds})."
    alone = f" That is below the noise between runs: {APART}."
    return f"{abs(change):.2f} % {way} ({bounds})." + (alone if abs(change) < RUN_TO_RUN_PCT else "")
