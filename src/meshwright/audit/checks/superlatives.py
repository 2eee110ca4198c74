"""Claims of being the largest or the fastest: one counter-example on record is enough."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import ALL_KINDS, Claim
from meshwright.audit.figures import count, figure, minutes
from meshwright.audit.rules import other_machines, round_order
from meshwright.audit.submissions import Submission, fastest, find, submissions, up_to
from meshwright.audit.verdict import CONSISTENT, IMPOSSIBLE, UNKNOWN, Statement
from meshwright.units import MINUTE

SCORED = 0.05  # a published score may be so much below the table's time of the same submission
SAME_TIME = 0.001  # a time that differs by less is that of the claim itself


def check(claim: Claim) -> Iterator[Statement]:
    """Statements on "the largest" and "the fastest"."""
    if claim.largest_of:
        yield _largest(claim)
    if claim.run.record:
        yield _fastest(claim)


def _largest(claim: Claim) -> Statement:
    run, kind = claim.run, claim.largest_of
    rows = up_to(run.round, submissions())
    alike = [row for row in rows if kind in (ALL_KINDS, row.accelerator)]
    if not run.gpus or not alike:
        why = "the claim does not say how many GPUs" if not run.gpus else f"our table has no run on {kind}"
        return Statement(about="largest", verdict=UNKNOWN, why=why, arithmetic=(f"runs on {kind} in our table: {len(alike)}",))
    most = max(alike, key=lambda row: row.gpus)
    lines = [f"largest on record of {'any kind' if kind == ALL_KINDS else kind}: {count(most.gpus)} ({most.name})", *_others(rows, kind)]
    known = next((one for one in other_machines() if kind in (ALL_KINDS, one.accelerator) and one.gpus > run.gpus), None)
    if known and known.gpus > most.gpus and (not run.round or round_order(run.round) >= round_order(known.before)):
        lines.append(f"known in addition to our table: {count(known.gpus)} {known.accelerator} ({known.source})")
        why = f"{count(known.gpus)} {known.accelerator} were submitted before {known.before}"
        return Statement(about="largest", verdict=IMPOSSIBLE, why=why, arithmetic=tuple(lines))
    if most.gpus > run.gpus:
        why = f"{count(most.gpus)} {most.accelerator} were submitted ({most.round} {most.submitter})"
        return Statement(about="largest", verdict=IMPOSSIBLE, why=why, arithmetic=tuple(lines))
    of = "of any kind" if kind == ALL_KINDS else f"of {kind}"
    larger = [row for row in rows if row.gpus > run.gpus]
    others = f" (of other kinds it has, up to {count(max(row.gpus for row in larger))})" if larger else ""
    why = f"our table has no larger machine {of}{others}"
    return Statement(about="largest", verdict=CONSISTENT, why=why, arithmetic=tuple(lines))


def _others(rows: list[Submission], kind: str) -> Iterator[str]:
    """The largest machines of other kinds, which a reader may have in mind."""
    others = [row for row in rows if kind != ALL_KINDS and row.accelerator != kind]
    if others:
        most = max(others, key=lambda row: row.gpus)
        yield f"largest on record of another kind: {count(most.gpus)} ({most.name})"


def _fastest(claim: Claim) -> Statement:
    run = claim.run
    if not (run.benchmark and run.duration_s):
        why = "a record needs a benchmark and a time"
        return Statement(about="record", verdict=UNKNOWN, why=why, arithmetic=("benchmark or time not given",))
    best = fastest(up_to(run.round, find(benchmark=run.benchmark)))
    if best is None:
        why = f"our table has no result of {run.benchmark}{f' up to {run.round}' if run.round else ''}"
        return Statement(about="record", verdict=UNKNOWN, why=why, arithmetic=(f"claimed: {minutes(run.duration_s.value)}",))
    line = f"fastest on record: {figure(best.minutes)} min ({best.name}); claimed {minutes(run.duration_s.value)}"
    if best.minutes * MINUTE < run.duration_s.low * (1 - SAME_TIME):
        why = f"{best.name} took {figure(best.minutes)} min"
        return Statement(about="record", verdict=IMPOSSIBLE, why=why, arithmetic=(line,))
    if run.duration_s.high < best.minutes * MINUTE * (1 - SCORED):
        nothing = "our table has nothing so fast, and does not hold all submissions"
        verdict, why = (CONSISTENT, f"{nothing}; the claim names its log") if run.log else (UNKNOWN, f"{nothing}; the claim names no log")
        return Statement(about="record", verdict=verdict, why=why, arithmetic=(line,))
    return Statement(about="record", verdict=CONSISTENT, why="our table has nothing faster", arithmetic=(line,))
