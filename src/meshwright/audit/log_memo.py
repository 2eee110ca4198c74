"""The logs of submissions as a document for the terminal and for JSON, and as a memo in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.audit.compare import Comparison, comparisons
from meshwright.audit.compliance import FAILED, NOT_RUN, PASSED, Compliance
from meshwright.audit.figures import figure, percent
from meshwright.audit.printable import escaped, one_line
from meshwright.audit.runs import WHOLE, LoggedRun
from meshwright.audit.score import LoggedSubmission
from meshwright.audit.submissions import Submission, noise, submissions
from meshwright.record.log_steps import WITH_EVALUATION
from meshwright.record.step_times import StepTimes
from meshwright.say.document import Block, Document, Table, Text
from meshwright.units import MINUTE

TIMES = ("log", "state", "time to train [min]>", "before the clock [min]>", "samples>", "steps>", "evaluations>", "evaluating [%]>")
RUN_COLUMNS = (*TIMES, "quality>", "target>", "compliance checker")
STEP_COLUMNS = (
    "log",
    "median [s]>",
    "spread [%]>",
    "std [%]>",
    "p99/p50>",
    "worst [s]>",
    "at step>",
    "first [s]>",
    "after a start [s]>",
    "drift [%]>",
    "read from",
)
NONE = "-"
BLOCKS = "▁▂▃▄▅▆▇█"  # heights of a strip
STRIP_WIDTH = 60
FLAT = 1e-3  # differences smaller than this are not drawn, because a strip should not show noise
UNKNOWN_WORDS = {
    "time_to_train_s": "time to train",
    "initialisation_s": "time before the clock",
    "samples": "samples",
    "num_steps": "steps",
    "steps": "step times",
    "evaluations": "evaluations and their time",
    "quality": "quality",
}
MOST_COMPLAINTS = 5
NOTABLE_SPREAD = 0.01  # between runs
LEAST_OF_REFERENCE, MOST_OF_REFERENCE = 0.5, 4.0  # samples over the reference's: no submission is outside


def title(one: LoggedSubmission) -> str:
    """The title of a submission."""
    log = next((run.log for run in one.runs if run.log), None)
    who = [str(event.value) for key in ("submission_org", "submission_platform") if log and (event := log.first(key))]
    round_words = f"{one.round} (by its date)" if one.is_round_inferred and one.round else one.round or "round not known"
    unnamed = "benchmark not legible" if log and log.damaged else "no benchmark named"
    return one_line(", ".join([one.benchmark or unnamed, round_words, *who]))


def run_rows(one: LoggedSubmission) -> list[tuple[str, ...]]:
    """A row for each log, by RUN_COLUMNS."""
    return [_run_row(run, compliance) for run, compliance in zip(one.runs, one.compliance, strict=True)]


def _run_row(run: LoggedRun, compliance: Compliance | None) -> tuple[str, ...]:
    ttt_s = run.time_to_train_s
    state = run.state if run.is_whole else f"{run.state}, line {run.line:,}" if run.line else run.state
    return (
        Path(run.path).name,
        state,
        _number(ttt_s and ttt_s / MINUTE, ".3f"),
        _number(run.initialisation_s and run.initialisation_s / MINUTE, ".2f"),
        _number(run.samples, ",.0f"),
        _number(run.num_steps, ",.0f"),
        _number(run.num_evaluations, "d"),
        _number(100 * run.evaluation_s / ttt_s if ttt_s and run.evaluation_s is not None else None, ".1f"),
        _number(run.quality, ".5g"),
        _number(run.target, ".5g"),
        _compliance_words(compliance),
    )


def step_rows(one: LoggedSubmission) -> list[tuple[str, ...]]:
    """A row for each log whose steps are known, by STEP_COLUMNS."""
    return [_step_row(run.path, run.steps) for run in one.runs if run.steps is not None]


def _step_row(path: str, steps: StepTimes) -> tuple[str, ...]:
    at, worst_s = steps.worst
    spreads = (f"{steps.robust_std_pct:.3f}", f"{steps.std_pct:.3f}", f"{steps.p99_over_p50:.4f}")
    firsts = _number(steps.first_step_s, ".4g"), _number(steps.first_median_s, ".4g")
    rest = (f"{worst_s:.4g}", str(at), *firsts, f"{steps.drift_pct:+.3f}", steps.method)
    return Path(path).name, f"{steps.median_s:.5g}", *spreads, *rest


def findings(one: LoggedSubmission) -> Iterator[str]:
    """Remarks on a submission, one sentence each."""
    yield from map(one_line, _findings(one))


def _findings(one: LoggedSubmission) -> Iterator[str]:
    yield from _problems(one)
    yield from _score(one)
    yield from _comparison(one)
    yield from _unscored(one)
    yield from _complaints(one)
    yield from _unusual(one)
    row = one.on_record
    if row is not None:
        platform = _platform(one, row)
        yield f"on record as {row.name}: {figure(row.minutes)} min, {row.step_s:g} s per step, runs {percent(noise([row]))} apart{platform}"


def _platform(one: LoggedSubmission, row: Submission) -> str:
    """The name of the machine in the logs, if it is not the accelerator on record."""
    platforms = {str(event.value) for run in one.runs if run.log and (event := run.log.first("submission_platform"))}
    recorded, named = _letters(row.accelerator), "".join(map(_letters, platforms))
    known = {_letters(submission.accelerator) for submission in submissions()}
    others = [name for name in known if name in named and name not in recorded and recorded not in named]
    return f"; but the logs name {', '.join(sorted(platforms))}" if others else ""


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _problems(one: LoggedSubmission) -> Iterator[str]:
    for run in one.runs:
        if run.problem:
            yield problem_sentence(run)
        if run.unknown:
            lines = ", ".join(f"{one.line:,}" for one in run.log.damaged) if run.log else ""
            lost = ", ".join(words for name, words in UNKNOWN_WORDS.items() if name in run.unknown)
            yield f"{Path(run.path).name}: unknown, because line {lines} cannot be read: {lost}"
        if run.is_whole and run.reached is False:
            ends = "an evaluation that is no number" if run.quality is None else f"{run.quality:.4g}"
            yield f"{Path(run.path).name} ends at {ends}, and the target is {_number(run.target, '.4g')}"
        yield from _doubts(run)
        if (run.is_whole or (run.log and run.log.damaged)) and run.no_steps:
            yield f"{Path(run.path).name} gives no step times: {run.no_steps}"
        others = [flaw for flaw in run.flaws if flaw.line != run.line]
        yield from (f"{Path(run.path).name}, line {flaw.line:,}: {flaw.what}" for flaw in others[:MOST_COMPLAINTS])


def problem_sentence(run: LoggedRun) -> str:
    """What is wrong with a log, and from which line on where a line shows it."""
    at = f" at line {run.line:,}" if run.line else ""
    return f"{Path(run.path).name} is {run.state}{at}: {run.problem}"


def _doubts(run: LoggedRun) -> Iterator[str]:
    """What a readable log does not say."""
    if run.is_whole and run.evaluations and run.quality is None and run.reached is None:
        yield f"{Path(run.path).name} has no result of its last evaluation (eval_accuracy): whether it reached the target is not known"
    if run.evaluations and not run.are_evaluations_timed and "evaluations" not in run.unknown:
        within = "the step times hold them too" if run.steps and run.steps.method == WITH_EVALUATION else _outside(run)
        yield f"{Path(run.path).name} does not say when its evaluations begin (no eval_start): {within}"


def _unusual(one: LoggedSubmission) -> Iterator[str]:
    """Samples far from those of all submissions: more likely a misread counter than a real run."""
    for run in one.runs:
        ratio = run.of_reference
        if ratio is not None and run.state == WHOLE and not LEAST_OF_REFERENCE < ratio < MOST_OF_REFERENCE:
            counts = f"{figure(ratio)} times the samples that MLPerf's reference needs at this batch"
            yield f"{Path(run.path).name} trained on {run.samples:,.0f} samples, {counts}: its counter may not count samples"


def _outside(run: LoggedRun) -> str:
    if run.stepping_s is None or run.time_to_train_s is None:
        return "their time is not known"
    return f"the time outside steps, {percent(1 - run.stepping_s / run.time_to_train_s)}, is theirs and the rest's"


def _score(one: LoggedSubmission) -> Iterator[str]:
    score = one.score
    yield f"rule: {score.rule}"
    if score.minutes is not None:
        factor = f", times {score.scaling:.4f} for converging sooner than the reference (scaling.json)" if score.scaling != 1 else ""
        dropped = " and ".join(Path(path).name for path in score.dropped)
        yield f"score: {score.minutes:.3f} min ({dropped} dropped{factor})"
        return
    times = [run.time_to_train_s / MINUTE for run in one.runs if run.is_whole and run.time_to_train_s]
    if len(times) > 1:
        yield f"the {len(times)} whole logs here took {min(times):.3f} to {max(times):.3f} min, {median(times):.3f} in the middle"


def _comparison(one: LoggedSubmission) -> Iterator[str]:
    spread = one.run_spread
    if spread is not None:
        medians = sorted((run.steps.median_s, Path(run.path).name) for run in one.readable if run.steps)
        remark = f": {medians[-1][1]} is the slowest, {medians[0][1]} the fastest" if spread > NOTABLE_SPREAD else ""
        yield f"the runs' median steps lie {percent(spread)} apart{remark}; a smaller difference to another machine says nothing"
    samples = [run.samples for run in one.runs if run.samples]
    if len(set(samples)) > 1:
        yield f"the runs needed {min(samples):,.0f} to {max(samples):,.0f} samples: {percent(max(samples) / min(samples) - 1)} apart"
    for key, values in one.differing_settings.items():
        yield f"the runs differ in {key}: {', '.join(dict.fromkeys(map(str, values)))}"


def _unscored(one: LoggedSubmission) -> Iterator[str]:
    waits = [run.initialisation_s for run in one.runs if run.initialisation_s]
    if waits:
        warm = [run.warm_up_s for run in one.runs if run.warm_up_s]
        of = f", {max(warm) / MINUTE:.1f} of them warm-up" if warm else ""
        yield f"before the clock, and not scored: up to {max(waits) / MINUTE:.1f} min of initialisation{of}"


def _complaints(one: LoggedSubmission) -> Iterator[str]:
    for run, compliance in zip(one.runs, one.compliance, strict=True):
        for complaint in (compliance.complaints if compliance else ())[:MOST_COMPLAINTS]:
            yield f"compliance checker on {Path(run.path).name}: {complaint}"
    reasons = dict.fromkeys(compliance.why for compliance in one.compliance if compliance and compliance.state == NOT_RUN)
    yield from (f"compliance checker not run: {reason}" for reason in reasons)
    if any(compliance and compliance.state in (PASSED, FAILED) for compliance in one.compliance):
        rules = dict.fromkeys(compliance.rules for compliance in one.compliance if compliance and compliance.rules)
        yield f"compliance checker of mlperf-logging, {'; '.join(rules)}"


def _compliance_words(compliance: Compliance | None) -> str:
    if compliance is None or compliance.state == NOT_RUN:
        return NOT_RUN
    return compliance.state if compliance.state == PASSED else f"{len(compliance.complaints)} complaint(s)"


def _number(value: float | None, form: str) -> str:
    return NONE if value is None or value != value else format(value, form)


def as_markdown(one: LoggedSubmission) -> str:
    """The memo."""
    lines = [f"# {escaped(title(one))}", "", *_table(RUN_COLUMNS, run_rows(one)), ""]
    steps = step_rows(one)
    lines += ["## Step times", "", *_table(STEP_COLUMNS, steps), ""] if steps else []
    lines += ["## Findings", "", *(f"- {escaped(finding)}" for finding in findings(one))]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(escaped(column.removesuffix('>')) for column in columns)} |"
    yield f"| {' | '.join('---:' if column.endswith('>') else '---' for column in columns)} |"
    yield from (f"| {' | '.join(escaped(cell) for cell in row)} |" for row in rows)


def logs_document(found: Sequence[LoggedSubmission]) -> Document:
    """Submissions as tables with a strip of their step times, remarks on them, and how they compare with the first."""
    compared = comparisons(found)
    blocks = [block for one in found for block in _blocks(one)]
    blocks += [Text(line) for line in comparison_lines(found)]
    values = {
        "submissions": [submission_values(one) for one in found],
        "comparisons": [_comparison_values(one.folder, found[0].folder, comparison) for one, comparison in compared],
    }
    return Document(kind="logs", title="MLPerf logs", blocks=tuple(blocks), values=values)


def comparison_lines(found: Sequence[LoggedSubmission]) -> list[str]:
    """How each submission compares with the first, a line each."""
    return [f"{one.folder} against {found[0].folder}: {comparison.sentence}" for one, comparison in comparisons(found)]


def _blocks(one: LoggedSubmission) -> Iterator[Block]:
    yield Table(title(one), RUN_COLUMNS, tuple(run_rows(one)))
    if steps := step_rows(one):
        yield Table("step times", STEP_COLUMNS, tuple(steps))
        drawn = [(Path(run.path).name, strip(run.steps.seconds), _scale(run.steps)) for run in one.runs if run.steps is not None]
        yield Table("step times from the first to the last", ("log", "median of each stretch", "from lowest to highest"), tuple(drawn))
    yield from map(Text, findings(one))


def strip(seconds: NDArray[np.float64], width: int = STRIP_WIDTH) -> str:
    """A line of blocks, each as high as the median of its part of the steps, from the lowest to the highest part."""
    medians = np.array([np.median(part) for part in np.array_split(seconds, min(width, len(seconds)))])
    low, high = float(medians.min()), float(medians.max())
    if high - low <= FLAT * high:
        return BLOCKS[0] * len(medians)
    levels = np.rint((medians - low) / (high - low) * (len(BLOCKS) - 1)).astype(int)
    return "".join(BLOCKS[level] for level in levels)


def _scale(steps: StepTimes) -> str:
    medians = [float(np.median(part)) for part in np.array_split(steps.seconds, min(STRIP_WIDTH, len(steps.seconds)))]
    return f"{min(medians):.4g} to {max(medians):.4g} s"


def _comparison_values(folder: str, base: str, one: Comparison) -> dict[str, Any]:
    return {
        "folder": folder,
        "base_folder": base,
        "time_ratio": one.time,
        "throughput_ratio": one.throughput,
        "convergence_ratio": one.convergence,
        "loop_ratio": one.loop,
        "noise_share": one.noise,
        "has_factor": one.has_factor,
        "text": one.sentence,
    }


def submission_values(one: LoggedSubmission) -> dict[str, Any]:
    """A submission: its score, and each of its logs."""
    return {
        "folder": one.folder,
        "benchmark": one.benchmark or None,
        "round": one.round or None,
        "is_round_inferred": one.is_round_inferred,
        "score_s": None if one.score.minutes is None else one.score.minutes * MINUTE,
        "rule": one.score.rule,
        "dropped": list(one.score.dropped),
        "scaling_factor": one.score.scaling,
        "run_spread_pct": None if one.run_spread is None else 100 * one.run_spread,
        "differing_settings": one.differing_settings,
        "on_record": _row_values(one.on_record),
        "findings": list(findings(one)),
        "logged_runs": [_log_values(run, compliance) for run, compliance in zip(one.runs, one.compliance, strict=True)],
    }


def _row_values(row: Submission | None) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"name": row.name, "time_to_train_s": row.minutes * MINUTE, "measured_s": row.step_s, "source": row.source}


def _log_values(run: LoggedRun, compliance: Compliance | None) -> dict[str, Any]:
    damaged = run.log.damaged if run.log else ()
    return {
        "path": run.path,
        "state": run.state,
        "is_whole": run.is_whole,
        "line": run.line or None,
        "problem": run.problem or None,
        "flaws": [{"line": flaw.line, "what": flaw.what, "is_damage": flaw.is_damage} for flaw in run.flaws],
        "damaged_lines": [{"line": one.line, "why": one.why, "key": one.key or None} for one in damaged],
        "unknown_values": [name for name in UNKNOWN_WORDS if name in run.unknown],
        "time_to_train_s": run.time_to_train_s,
        "initialisation_s": run.initialisation_s,
        "warm_up_s": run.warm_up_s,
        "num_trained_samples": run.samples,
        "num_steps": run.num_steps,
        "num_evaluations": run.num_evaluations,
        "evaluation_s": run.evaluation_s,
        "stepping_s": run.stepping_s,
        "rest_s": run.rest_s,
        "quality": run.quality,
        "target_quality": run.target,
        "is_target_reached": run.reached,
        "step_times": _step_values(run.steps) if run.steps else None,
        "compliance": compliance and _compliance_values(compliance),
    }


def _compliance_values(compliance: Compliance) -> dict[str, Any]:
    complaints = list(compliance.complaints)
    return {"state": compliance.state, "rules": compliance.rules or None, "complaints": complaints, "why": compliance.why or None}


def _step_values(steps: StepTimes) -> dict[str, Any]:
    at, worst_s = steps.worst
    return {
        "method": steps.method,
        "num_steps": len(steps.seconds),
        "median_step_s": steps.median_s,
        "robust_std_pct": steps.robust_std_pct,
        "std_pct": steps.std_pct,
        "p99_over_p50": steps.p99_over_p50,
        "worst_step_s": worst_s,
        "worst_step": at,
        "first_step_s": steps.first_step_s,
        "first_median_s": steps.first_median_s,
        "drift_pct": steps.drift_pct,
    }
