"""Runs at several sizes: weak and strong scaling, each efficiency with its interval and a plain sentence.

    efficiency = T_base / T_new x work ratio,  work ratio = (samples_new / samples_base) / (ranks_new / ranks_base)

T is the median steady step. Weak scaling keeps the samples of a rank, so its work ratio is 1; strong scaling keeps the samples of a step.
Runs are in one series only if they were simulated under the same conditions: the effect of a slow rank or a lost plane is not scaling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.report.compare import APART, RUN_TO_RUN_PCT
from meshwright.report.facts import RunFacts

KINDS = {
    "weak": "weak scaling: the batch grows with the machine",
    "strong": "strong scaling: the batch stays",
    "mixed": "neither weak nor strong: batch and machine grow at different rates",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One size: the runs of it, their step time, and their efficiency against the smallest size."""

    labels: tuple[str, ...]
    num_ranks: int
    batch: int
    step_s: float
    low_s: float | None  # 95 %; None with too few steps
    high_s: float | None
    efficiency: float  # 1 for the base
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Sizes of one job, the smallest first."""

    kind: str  # one of KINDS
    of: str  # the model, whether measured or simulated, and the conditions
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Size:
    """The runs of one plan at one size."""

    runs: tuple[RunFacts, ...]
    num_ranks: int
    batch: int
    step_s: float  # mean of their medians
    draws_s: NDArray[np.float64] | None

    @staticmethod
    def of(runs: Sequence[RunFacts]) -> _Size:
        """One size from runs with equal ranks and samples; if there are several runs, the draws include the differences between them."""
        medians = np.array([facts.summary.median_step_s for facts in runs])
        known = [facts.noise.draws_s for facts in runs if facts.noise is not None]
        draws = np.mean(known, axis=0) if len(known) == len(runs) else None
        if draws is not None and len(runs) > 1:
            error_s = float(np.std(medians, ddof=1)) / np.sqrt(len(runs))
            draws = draws + error_s * np.random.default_rng([runs[0].num_ranks, runs[0].batch]).standard_t(len(runs) - 1, len(draws))
        return _Size(tuple(runs), runs[0].num_ranks, runs[0].batch, float(np.mean(medians)), draws)


def scalings(runs: Sequence[RunFacts]) -> list[Scaling]:
    """Every weak and strong series among the runs; series that are neither are given only if there is no other."""
    found: list[Scaling] = []
    for of, sizes in _jobs(runs):
        series = [
            *_series("weak", of, sizes, lambda size: size.batch / size.num_ranks),
            *_series("strong", of, sizes, lambda size: size.batch),
        ]
        if not series and len({size.num_ranks for size in sizes}) > 1:
            series = [_scaling("mixed", of, sizes)]
        found += series
    return found


def left_out(runs: Sequence[RunFacts]) -> list[str]:
    """A sentence for each run that is in no series because of its conditions: which run, and how it differs from the others of its job."""
    shown = {label for scaling in scalings(runs) for point in scaling.points for label in point.labels}
    notes = []
    for alike in _by_job(runs).values():
        for facts in alike:
            others = [other for other in alike if _conditions(other) != _conditions(facts) and other.num_ranks != facts.num_ranks]
            if facts.label not in shown and others:
                notes.append(f"{facts.label} is left out of scaling: {_apart(facts, others[0])}.")
    return notes


def _apart(facts: RunFacts, other: RunFacts) -> str:
    """How the conditions of two runs differ: what only the first has, and what only the second has."""
    own, their = ([word for word in _conditions(one) if word not in _conditions(two)] for one, two in ((facts, other), (other, facts)))
    words = [f"simulated with {', '.join(own)}"] if own else []
    return "; ".join([*words, *([f"{other.label} with {', '.join(their)}"] if their else [f"{other.label} without"] if own else [])])


def _conditions(facts: RunFacts) -> tuple[str, ...]:
    """The simulated conditions of the machine; empty for a trained run."""
    return tuple(facts.run.header.conditions)


def _by_job(runs: Sequence[RunFacts]) -> dict[tuple[object, ...], list[RunFacts]]:
    """Runs grouped by model, sequence length, precision, accelerator, and measured or simulated; runs without a plan are left out."""
    jobs: dict[tuple[object, ...], list[RunFacts]] = {}
    for facts in runs:
        if facts.plan is not None:
            chip = facts.plan.cluster.accelerator.name
            job = (facts.model, facts.run.header.sequence_length, facts.plan.workload.precision, chip, facts.kind)
            jobs.setdefault(job, []).append(facts)
    return jobs


def _jobs(runs: Sequence[RunFacts]) -> Iterator[tuple[str, list[_Size]]]:
    """Runs of one job under the same conditions, by size."""
    for job, alike in _by_job(runs).items():
        conditions = dict.fromkeys(_conditions(facts) for facts in alike)
        for words in conditions:
            by_size: dict[tuple[int, int, str], list[RunFacts]] = {}
            for facts in (facts for facts in alike if _conditions(facts) == words):
                by_size.setdefault((facts.num_ranks, facts.batch, facts.run.header.plan_sha256 or ""), []).append(facts)
            how = f" with {', '.join(words)}" if len(conditions) > 1 and words else ""
            yield f"{job[0]} on {job[3]}, {job[4]}{how}", [_Size.of(by_size[size]) for size in sorted(by_size)]


def _series(kind: str, of: str, sizes: Sequence[_Size], kept: Callable[[_Size], float]) -> Iterator[Scaling]:
    """Groups of at least two sizes for which an amount is the same."""
    groups: dict[float, list[_Size]] = {}
    for size in sizes:
        groups.setdefault(round(kept(size), 9), []).append(size)
    for group in groups.values():
        if len({size.num_ranks for size in group}) > 1:
            yield _scaling(kind, of, group)


def _scaling(kind: str, of: str, sizes: Sequence[_Size]) -> Scaling:
    ordered = sorted(sizes, key=lambda size: (size.num_ranks, size.batch))
    return Scaling(kind=kind, of=of, points=tuple(_point(ordered[0], size) for size in ordered))


def _point(base: _Size, size: _Size) -> Point:
    work = (size.batch / base.batch) / (size.num_ranks / base.num_ranks)
    low = high = low_s = high_s = None
    if size.draws_s is not None:
        low_s, high_s = (float(value) for value in np.percentile(size.draws_s, [2.5, 97.5]))
    if size is base:
        low = high = 1.0
    elif base.draws_s is not None and size.draws_s is not None:
        low, high = (float(value) for value in np.percentile(base.draws_s / size.draws_s * work, [2.5, 97.5]))
    efficiency = base.step_s / size.step_s * work
    return Point(
        labels=tuple(facts.label for facts in size.runs),
        num_ranks=size.num_ranks,
        batch=size.batch,
        step_s=size.step_s,
        low_s=low_s,
        high_s=high_s,
        efficiency=efficiency,
        low=low,
        high=high,
        text="the base" if size is base else _sentence(base, size, efficiency, low, high),
    )


def _sentence(base: _Size, size: _Size, efficiency: float, low: float | None, high: float | None) -> str:
    """The efficiency in a sentence: a loss, a gain, or noise."""
    way = f"{base.num_ranks:,} to {size.num_ranks:,}"
    if low is None or high is None:
        return f"{way}: {100 * efficiency:.2f} %; too few steady steps for an interval."
    bounds = f"95 %: {100 * low:.2f} to {100 * high:.2f} %"
    if low <= 1 <= high:
        return f"{way}: the difference of {100 * (efficiency - 1):+.2f} % is below the noise within the runs ({bounds})."
    what = f"{way}: {100 * abs(efficiency - 1):.2f} % {'lost' if efficiency < 1 else 'gained'} ({bounds})."
    if min(len(base.runs), len(size.runs)) < 2 and 100 * abs(efficiency - 1) < RUN_TO_RUN_PCT:
        what += f" That is below the noise between runs: {APART}."
    return what
