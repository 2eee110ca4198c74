"""Recomputed logs as memos that can be forwarded: the checks with their results, then the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meshwright.audit.compliance import FAILED, PASSED
from meshwright.audit.figures import figure, percent
from meshwright.audit.log_memo import (
    LEAST_OF_REFERENCE,
    MOST_OF_REFERENCE,
    RUN_COLUMNS,
    STEP_COLUMNS,
    comparison_lines,
    findings,
    problem_sentence,
    run_rows,
    step_rows,
    title,
)
from meshwright.audit.printable import one_line
from meshwright.audit.runs import LoggedRun
from meshwright.audit.score import LoggedSubmission
from meshwright.say.document import Finding, Table
from meshwright.say.memo import FAIL, OPEN, PASS, Memo, Part
from meshwright.units import MINUTE


def log_memos(found: Sequence[LoggedSubmission]) -> list[Memo]:
    """A memo for each submission; the first memo also has the comparison of the others with the first."""
    compared = tuple(map(one_line, comparison_lines(found)))
    return [_memo(one, compared if i == 0 else ()) for i, one in enumerate(found)]


def _memo(one: LoggedSubmission, compared: tuple[str, ...]) -> Memo:
    checks = tuple(Finding(outcome, about, one_line(why)) for outcome, about, why in _checks(one))
    outcome = next((kind for kind in (FAIL, OPEN) if any(check.verdict == kind for check in checks)), PASS)
    words = {FAIL: "does not hold", OPEN: "holds as far as it goes", PASS: "holds"}
    tables = (Table("runs", RUN_COLUMNS, tuple(run_rows(one))), Table("step times", STEP_COLUMNS, tuple(step_rows(one))))
    return Memo(
        kind="audit of MLPerf logs",
        title=title(one),
        outcome=outcome,
        verdict=words[outcome],
        headline=one_line(_headline(one)),
        second=_against(checks),
        findings=checks,
        parts=(
            Part(title="Against the first", lines=compared),
            Part(title="Numbers, computed again from the logs", tables=tuple(table for table in tables if table.rows)),
            Part(title="Remarks", lines=tuple(findings(one))),
            Part(title="Sources", lines=tuple(one_line(str(run.path)) for run in one.runs)),
        ),
        footer="Logs say what a run wrote about itself: a carefully invented log passes.",
    )


def _headline(one: LoggedSubmission) -> str:
    if one.score.minutes is not None:
        return f"The score by MLPerf's rule is {one.score.minutes:.3f} minutes ({one.score.rule})."
    times = [run.time_to_train_s / MINUTE for run in one.runs if run.is_whole and run.time_to_train_s]
    if not times:
        return "No time can be computed from these logs."
    each = f"{min(times):.3f} minutes" if len(times) == 1 else f"{min(times):.3f} to {max(times):.3f} minutes"
    return f"The time to train is {each}, of {len(times)} whole {'log' if len(times) == 1 else 'logs'}; there is no score."


def _against(checks: Sequence[Finding]) -> str:
    first = next((check for kind in (FAIL, OPEN) for check in checks if check.verdict == kind), None)
    return f"{first.about.capitalize()}: {first.why}." if first else ""


def _checks(one: LoggedSubmission) -> Iterator[tuple[str, str, str]]:
    """Outcome, what was checked, and why; the worst first."""
    found = [*_of_logs(one.runs), *_of_submission(one)]
    yield from sorted(found, key=lambda check: (FAIL, OPEN, PASS).index(check[0]))


def _of_logs(runs: Sequence[LoggedRun]) -> Iterator[tuple[str, str, str]]:
    bad = [run for run in runs if run.problem]
    why = "; ".join(map(problem_sentence, bad))
    yield (FAIL, "logs are whole", why) if bad else (PASS, "logs are whole", f"all {len(runs)}")
    missed = [Path(run.path).name for run in runs if run.reached is False]
    unknown = [Path(run.path).name for run in runs if run.reached is None]
    if missed:
        yield FAIL, "target is reached", f"not by {', '.join(missed)}"
    elif unknown:
        yield OPEN, "target is reached", f"target or quality of {', '.join(unknown)} is not known"
    else:
        yield PASS, "target is reached", "by the last evaluation of every run"
    ratios = [run.of_reference for run in runs if run.of_reference is not None]
    if ratios:
        is_usual = all(LEAST_OF_REFERENCE < ratio < MOST_OF_REFERENCE for ratio in ratios)
        span = " to ".join(dict.fromkeys((figure(min(ratios)), figure(max(ratios)))))
        yield PASS if is_usual else OPEN, "samples to the target", f"{span} times what MLPerf's reference needs at that batch"
    untimed = [Path(run.path).name for run in runs if run.evaluations and not run.are_evaluations_timed]
    if untimed:
        yield OPEN, "time adds up", f"when evaluations begin is not in {', '.join(untimed)}"
    elif any(run.rest_s is not None for run in runs):
        rest = max(run.rest_s / run.time_to_train_s for run in runs if run.rest_s is not None and run.time_to_train_s)
        yield PASS, "time adds up", f"steps and evaluations fill the run but for {percent(rest)} at most"


def _of_submission(one: LoggedSubmission) -> Iterator[tuple[str, str, str]]:
    scored = one.score.minutes is not None
    yield PASS if scored else OPEN, "score by MLPerf's rule", one.score.rule
    states = [compliance.state for compliance in one.compliance if compliance]
    if FAILED in states:
        yield FAIL, "MLPerf's compliance checker", f"complains about {states.count(FAILED)} of {len(states)} logs"
    elif states and all(state == PASSED for state in states):
        yield PASS, "MLPerf's compliance checker", f"passed all {len(states)} logs"
    else:
        yield OPEN, "MLPerf's compliance checker", "was not run on every log"
    differing = one.differing_settings
    if len(one.runs) > 1:
        why = f"differ in {', '.join(differing)}" if differing else "differ in nothing but their seed"
        yield FAIL if differing else PASS, "settings of the runs", why
    row = one.on_record
    if row is not None:
        yield PASS, "result on record", f"{row.name}: {figure(row.minutes)} min"
    else:
        yield OPEN, "result on record", "our table has no such submission; it does not hold them all"
