"""Compares samples to the target with MLPerf's reference and with submissions."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count
from meshwright.audit.rules import benchmarks
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, Statement
from meshwright.audit.work import fewest_samples, samples_of

FEWEST = 0.8  # share of the reference at that batch: no submission needed fewer
NEAR = 0.95  # share of the reference: MLPerf's test allows about this much for chance


def check(claim: Claim) -> Iterator[Statement]:
    """A statement on each run that says how many samples it needed for a benchmark's target."""
    for run, about in ((claim.run, "samples to the target"), (claim.baseline, "samples of the baseline")):
        if run is not None and run.benchmark and samples_of(run):
            yield _judged(run, about)


def _judged(run: Run, about: str) -> Statement:
    samples = samples_of(run)
    reference = benchmarks()[run.benchmark].reference_samples(run.global_batch)
    batch = f"at batch {count(run.global_batch)}" if run.global_batch else "at its best batch: none is claimed"
    ratio, fewest = samples / reference, fewest_samples(run.benchmark)
    lines = (
        f"claimed {count(samples)} / {count(reference)} samples of MLPerf's reference {batch} = {ratio:.2f}",
        f"fewest of any submission or reference, at any batch: {count(fewest)}",
    )
    if ratio < FEWEST:
        why = f"{ratio:.2f} of what the reference needs; no run on record comes close"
        return Statement(about=about, verdict=IMPLAUSIBLE, why=why, arithmetic=lines)
    why = f"{ratio:.2f} times what MLPerf's reference needs"
    if ratio < NEAR:
        why += f"; MLPerf multiplies the score of such a submission by up to {1 / ratio:.2f}"
    return Statement(about=about, verdict=CONSISTENT, why=why, arithmetic=lines)
