"""Compares claims with the table of submissions: whether such a run exists, whether it took that long, and whether a number is public."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count, figure, minutes, percent
from meshwright.audit.rules import benchmarks
from meshwright.audit.runs import WHOLE, LoggedRun, read_run
from meshwright.audit.stated import Stated
from meshwright.audit.submissions import Submission, find, noise, submissions, unlike
from meshwright.audit.verdict import CONSISTENT, MISLEADING, UNKNOWN, UNSUPPORTED, Statement
from meshwright.audit.work import alike
from meshwright.errors import InputError
from meshwright.record.log_steps import step_times
from meshwright.record.mllog import read_log
from meshwright.units import MINUTE

# The table has the time itself, of the middle runs or the median one: a published score may differ by a few per cent. Where a submission
# converged sooner than the reference MLPerf multiplies its score by the ratio, so that it may be that much slower than the table.
SLOWER, FASTER = 1.05, 0.95
# Two systems of one submitter with the same accelerators differ by up to 1.17 times in one round: only beyond that does a log contradict.
OTHER_SYSTEM = 1.2
LEAST_NOISE = 0.01  # a step time is held to be the same within this share, however little the runs differed
NUM_NEAREST = 3


def check(claim: Claim) -> Iterator[Statement]:
    """Statements on the submission, its time and its step time, for the run and for its baseline."""
    for run, of in ((claim.run, ""), (claim.baseline, " of the baseline")):
        if run is None:
            continue
        if run.round and (run.gpus or run.accelerator or run.submitter):
            yield _submission(run, f"submission{of}")
        if run.log:
            yield from _log(run, claim.folder, of)
        elif run.step_s:
            yield _step_time(run, f"step time{of}")


def _submission(run: Run, about: str) -> Statement:
    rows = find(**run.lookup)
    if not rows:
        why = "our table has no such submission; it does not hold them all"
        return Statement(about=about, verdict=UNKNOWN, why=why, arithmetic=tuple(_nearest(run)))
    lines = tuple(_line(row) for row in rows[:NUM_NEAREST])
    if run.duration_s is None:
        return Statement(about=about, verdict=CONSISTENT, why=f"on record: {rows[0].name}", arithmetic=lines)
    return _time(run, run.duration_s, rows, about)


def _time(run: Run, claimed: Stated, rows: Sequence[Submission], about: str) -> Statement:
    timed = [row for row in rows if row.minutes > 0]
    if not timed:
        why = "our table has the submission, but not its time"
        return Statement(about=about, verdict=UNKNOWN, why=why, arithmetic=tuple(_line(row) for row in rows[:NUM_NEAREST]))
    row = min(timed, key=lambda row: abs(row.minutes * MINUTE / claimed.value - 1))
    ratio = claimed.value / (row.minutes * MINUTE)
    lines = [_line(row), f"claimed {minutes(claimed.value)} / {figure(row.minutes)} min on record = {ratio:.3f}"]
    factor = _score_factor(row)
    lines += _remark(run, row)
    if factor > 1:
        lines.append(f"MLPerf may multiply its score by up to {factor:.3f}: it converged sooner than the reference")
    if FASTER <= ratio <= SLOWER * factor:
        why = f"the log of {row.name} says {figure(row.minutes)} min"
        return Statement(about=about, verdict=CONSISTENT, why=why, arithmetic=tuple(lines))
    if row.is_by(run.submitter) and not 1 / OTHER_SYSTEM <= ratio <= OTHER_SYSTEM * factor:
        why = f"the log of {row.name} says {figure(row.minutes)} min, not {minutes(claimed.value)}"
        return Statement(about=about, verdict=MISLEADING, why=why, arithmetic=tuple(lines))
    why = f"on record for this machine and round is {figure(row.minutes)} min ({row.submitter}); another submission is not in our table"
    return Statement(about=about, verdict=UNKNOWN, why=why, arithmetic=tuple(lines))


def _score_factor(row: Submission) -> float:
    """The factor by which MLPerf may multiply a score: the reference's samples divided by the row's; 1 if the row needed as many."""
    reference = benchmarks()[row.benchmark].reference_samples(row.global_batch)
    return max(reference / row.samples, 1.0) if row.samples > 0 else 1.0


def _line(row: Submission) -> str:
    time = f"{figure(row.minutes)} min to the target, " if row.minutes > 0 else ""
    return f"on record: {row.name}: {time}{figure(row.step_s)} s per step of {count(row.global_batch)} sequences"


def _remark(run: Run, row: Submission) -> list[str]:
    """A remark if the claim and the record are in different precisions."""
    difference = unlike(run.precision, row.precision)
    return [difference] if difference else []


def _nearest(run: Run) -> Iterator[str]:
    """What the table has instead: the same round and benchmark, nearest in size."""
    like = find(round=run.round, benchmark=run.benchmark, accelerator=run.accelerator) or find(round=run.round, benchmark=run.benchmark)
    what = f"{run.round} {run.benchmark}".strip()
    yield f"our table: {len(submissions())} submissions, {len(find(round=run.round, benchmark=run.benchmark))} of {what}"
    for row in sorted(like, key=lambda row: abs(row.gpus - run.gpus))[:NUM_NEAREST]:
        yield f"nearest {_line(row)}"


def _step_time(run: Run, about: str) -> Statement:
    assert run.step_s is not None
    rows = [row for row in alike(run) if not run.global_batch or row.global_batch == run.global_batch]
    if not rows:
        why = "no public log of such a run is known to us, and the claim names none"
        machine = f"{count(run.gpus)} {run.accelerator}".strip() if run.gpus else "a machine that is not named"
        return Statement(
            about=about,
            verdict=UNSUPPORTED,
            why=why,
            arithmetic=(f"claimed: {figure(run.step_s.value)} s on {machine}; submissions of such a run: 0",),
        )
    row = min(rows, key=lambda row: abs(row.step_s - run.step_s.value) if run.step_s else 0.0)
    spread = max(noise([row]), LEAST_NOISE)
    off = run.step_s.value / row.step_s - 1
    lines = (
        _line(row),
        f"claimed {run.step_s.value:g} s / {row.step_s:g} s - 1 = {100 * off:+.2f} %; its runs differ by {percent(noise([row]))}",
        *_remark(run, row),
    )
    if abs(off) <= spread:
        return Statement(about=about, verdict=CONSISTENT, why=f"the logs of {row.name} say {row.step_s:g} s", arithmetic=lines)
    if run.round and row.is_by(run.submitter) and not 1 / OTHER_SYSTEM <= 1 + off <= OTHER_SYSTEM:
        why = f"the logs of {row.name} say {row.step_s:g} s; the claim is {abs(100 * off):.1f} % {'above' if off > 0 else 'below'} that"
        return Statement(about=about, verdict=MISLEADING, why=why, arithmetic=lines)
    why = f"the nearest public logs ({row.name}) say {row.step_s:g} s, and the claim names no log of its own"
    return Statement(about=about, verdict=UNSUPPORTED, why=why, arithmetic=lines)


def _log(run: Run, folder: Path, of: str) -> Iterator[Statement]:
    path = Path(run.log) if Path(run.log).is_absolute() else folder / run.log
    if not path.is_file() and ("://" in run.log or " " in run.log):
        why = "a public log is named; it was not opened here"
        yield Statement(about=f"log{of}", verdict=CONSISTENT, why=why, arithmetic=(f"named: {run.log}",))
        return
    if not path.is_file():
        raise InputError(f"no log at {run.log}", where="log", fix="give the path of an MLPerf log next to the claim, or a web address")
    log, logged = read_log(path), read_run(path)
    if run.duration_s:
        yield _failed(run, logged, of) or _same("time to train", of, run.duration_s, log.time_to_train_s, FASTER, SLOWER)
    if run.step_s:
        yield _same("step time", of, run.step_s, step_times(log).median_s, 1 - LEAST_NOISE, 1 + LEAST_NOISE)
    if not (run.duration_s or run.step_s):
        is_whole = logged.state == WHOLE and logged.reached is not False
        yield Statement(
            about=f"log{of}",
            verdict=CONSISTENT if is_whole else UNSUPPORTED,
            why="the log exists and is complete" if is_whole else f"the log exists: {_fault(logged)}",
            arithmetic=(f"{run.log}: {len(log.events)} lines of MLPerf's",),
        )


def _failed(run: Run, logged: LoggedRun, of: str) -> Statement | None:
    """The statement on a time to train whose log is not that of a run that reached its target; None where it is."""
    if logged.state == WHOLE and logged.reached is not False:
        return None
    why = f"the log that it names is not of a run that reached the target: {_fault(logged)}"
    line = f"{run.log}: quality {_quality_words(logged.quality)}, target {_quality_words(logged.target)}"
    return Statement(about=f"time to train{of}", verdict=MISLEADING, why=why, arithmetic=(line,))


def _fault(logged: LoggedRun) -> str:
    """Why a log does not show what a claim says."""
    if logged.state != WHOLE:
        return f"it is {logged.state} at line {logged.line:,}: {logged.problem}"
    return f"it ends at {_quality_words(logged.quality)}, and the target is {_quality_words(logged.target)}"


def _quality_words(value: float | None) -> str:
    return "not logged" if value is None else f"{value:.4g}"


def _same(what: str, of: str, claimed: Stated, measured_s: float, low: float, high: float) -> Statement:
    ratio = claimed.value / measured_s
    holds = low <= ratio <= high
    line = f"claimed {figure(claimed.value)} s / {figure(measured_s)} s in the log = {ratio:.4f}"
    why = "the log that it names says the same" if holds else f"the log that it names says {figure(measured_s)} s"
    return Statement(about=f"{what}{of}", verdict=CONSISTENT if holds else MISLEADING, why=why, arithmetic=(line,))
