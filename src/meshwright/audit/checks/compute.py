"""Compares FLOPs with the peak of the accelerator, and with the best that was measured on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count, figure, minutes, percent, teraflops
from meshwright.audit.rules import most_published
from meshwright.audit.submissions import Submission, best_rate, find, most_gain, most_share_of_peak, unlike
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, IMPOSSIBLE, MISLEADING, UNKNOWN, Statement
from meshwright.audit.work import Work, attention_range, run_work, step_work
from meshwright.describe.hardware import Accelerator
from meshwright.describe.load import accelerator, names
from meshwright.describe.recipe import recipe
from meshwright.units import MINUTE, TERA

SAME_SIZE = 0.1  # machines whose sizes differ by less than a tenth are compared
ROUNDING = 0.02  # allowed difference between a claimed rate and the one that follows from the claim's other numbers
GPU_VENDORS = ("NVIDIA", "AMD")  # published values of a number format apply to their chips
MOST_EVALUATING = 1.25  # time of a run over that of its steps


@dataclass(frozen=True, slots=True)
class Rate:
    """FLOP/s of one accelerator that follow from a claim."""

    flops_per_s: float
    lines: tuple[str, ...]
    is_of_step: bool = False
    usual_flops_per_s: float = 0.0  # with the samples that submissions usually need, where none are claimed


def check(claim: Claim) -> Iterator[Statement]:
    """Statements on the compute of the run and of its baseline, and on claimed rates."""
    for run, about in ((claim.run, "compute"), (claim.baseline, "compute of the baseline")):
        if run is not None:
            yield from _of_run(run, about)
    yield from _claimed(claim)


def _of_run(run: Run, about: str) -> Iterator[Statement]:
    if not run.gpus:
        return
    work, step_s = run_work(run), run.step_s
    if not run.accelerator:
        if run.duration_s and work:
            yield _on_any(_rate(work, run.gpus, run.duration_s.value, "run"), about)
        return
    if run.duration_s and work:
        yield judged(run, _rate(work, run.gpus, run.duration_s.value, "run"), about)
    elif run.duration_s and (run.model or run.parameters or run.benchmark):
        missing = "seq_len" if run.benchmark else "tokens, or the benchmark"
        why = f"the claim does not say how much was trained: give {missing}"
        yield Statement(about=about, verdict=UNKNOWN, why=why, arithmetic=(f"claimed: {minutes(run.duration_s.value)}",))
    if step_s:
        run = with_batch_on_record(run)
        step = step_work(run)
        if step:
            yield judged(run, replace(_rate(step, run.gpus, step_s.value, "step"), is_of_step=True), f"{about}, in a step")


def _on_any(rate: Rate, about: str) -> Statement:
    """The statement on a run without a named accelerator: above the fastest of all, or unknown."""
    chip = max((accelerator(name) for name in names("accelerators")), key=lambda one: max(one.dense_flops_per_s.values()))
    number_format, peak = max(chip.dense_flops_per_s.items(), key=lambda entry: entry[1])
    share = rate.flops_per_s / peak
    lines = (*rate.lines, f"fastest peak of any we know: {teraflops(peak)} dense {chip.name} ({number_format}): {percent(share)} of it")
    if share > 1:
        why = f"{percent(share)} of the peak of the fastest accelerator we know, {chip.name}"
        return Statement(about=about, verdict=IMPOSSIBLE, why=why, arithmetic=lines)
    why = f"the claim names no accelerator; {teraflops(rate.flops_per_s)} each is within the peak of the fastest, {chip.name}"
    return Statement(about=about, verdict=UNKNOWN, why=why, arithmetic=lines)


def with_batch_on_record(run: Run) -> Run:
    """The run with the batch (and, if it names a round, the benchmark) of the submissions on that machine, if these are all the same."""
    if run.global_batch or not (run.gpus and run.accelerator) or not (run.benchmark or run.round) or run.model or run.parameters:
        return run
    found = {(row.benchmark, row.global_batch) for row in find(**run.lookup)}
    if len(found) != 1:
        return run
    benchmark, batch = found.pop()
    return replace(run, benchmark=benchmark, global_batch=batch)


def _rate(work: Work, gpus: int, seconds: float, what: str) -> Rate:
    rate = work.flops / (gpus * seconds)
    took = "1 s" if what == "second" else f"{figure(seconds)} s per {what}"
    line = f"rate: {figure(work.flops)} FLOP / ({count(gpus)} GPU{'s' if gpus > 1 else ''} x {took}) = {teraflops(rate)} each"
    return Rate(rate, (work.line, line), usual_flops_per_s=work.usual_flops / (gpus * seconds))


def judged(run: Run, rate: Rate, about: str) -> Statement:
    """The statement on a rate: above the peak, above the best that was reached, or within it."""
    chip = accelerator(run.accelerator)
    if run.precision and not chip.can_run(run.precision):
        why = f"{chip.name} has no tensor cores for {run.precision}"
        able = f"{chip.name} multiplies in {', '.join(chip.dense_flops_per_s)}"
        return Statement(about=about, verdict=IMPOSSIBLE, why=why, arithmetic=(*rate.lines, able))
    number_format = (
        recipe(run.precision).number_format if run.precision else max(chip.dense_flops_per_s, key=lambda f: chip.dense_flops_per_s[f])
    )
    peak = chip.peak_flops_per_s(run.precision) if run.precision else chip.dense_flops_per_s[number_format]
    share = rate.flops_per_s / peak
    number_words = number_format if run.precision else f"{number_format}, its fastest: no precision is claimed"
    lines = [*rate.lines, f"peak: {teraflops(peak)} dense {chip.name} ({number_words}): {percent(share)} of it"]
    if rate.usual_flops_per_s:
        usual = rate.usual_flops_per_s
        lines.append(f"with the median of submissions' samples: {teraflops(usual)} each, {percent(usual / peak)} of the peak")
    if share > 1:
        why = f"each {chip.name} would run at {percent(share)} of its dense {number_format} peak"
        return Statement(about=about, verdict=IMPOSSIBLE, why=why, arithmetic=tuple(lines))
    most, whose = _most(chip, number_format if run.precision else "")
    times, line, remark = _against_best(run, rate)
    gain, gained = most_gain(chip.vendor)
    lines += [one for one in (line, remark) if one]
    if share > most:
        lines.append(f"most on record: {percent(most)} of a peak ({whose})")
        why = f"{percent(share)} of the peak, where no run on record exceeds {percent(most)}"
        return Statement(about=about, verdict=IMPLAUSIBLE, why=why, arithmetic=tuple(lines))
    if times > gain:
        lines.append(f"most that software gained one machine between rounds: {gain:.2f} times ({gained})")
        why = f"{times:.2f} times the best on record, and software alone never gained more than {gain:.2f} times"
        return Statement(about=about, verdict=IMPLAUSIBLE, why=why, arithmetic=tuple(lines))
    best = f", {times:.2f} times the best on record{' in another precision' if remark else ''}" if line else ""
    why = f"{percent(share)} of the peak{best}"
    return Statement(about=about, verdict=CONSISTENT, why=why, arithmetic=tuple(lines))


def _most(chip: Accelerator, number_format: str) -> tuple[float, str]:
    """The highest share of a peak on record, and its source: for the claimed format if one was published, otherwise of any submission."""
    published = most_published(number_format) if chip.vendor in GPU_VENDORS else None
    return published or most_share_of_peak()


def _against_best(run: Run, rate: Rate) -> tuple[float, str, str]:
    """How many times the best on record the claim is (0: nothing comparable), a line that says so, and how the two differ.

    The best result of the same benchmark on the same accelerator, in the same precision and at the same size if there is one; otherwise the
    best rate of that accelerator.
    """
    rows = find(benchmark=run.benchmark, accelerator=run.accelerator) if run.benchmark else []
    rows = [row for row in rows if rate.is_of_step or row.minutes > 0]
    rows = [row for row in rows if not unlike(run.precision, row.precision)] or rows
    same = [row for row in rows if abs(row.gpus / run.gpus - 1) < SAME_SIZE]
    if same or rows:
        return _against_row(run, rate, same or rows)
    best = best_rate(run.accelerator)
    if best is None:
        return 0.0, "", ""
    times = rate.flops_per_s / best.flops_per_s
    line = f"best on record: {teraflops(best.flops_per_s)} ({best.where}); the claim is {times:.2f} times that"
    return times, line, unlike(run.precision, best.precision)


def _against_row(run: Run, rate: Rate, rows: list[Submission]) -> tuple[float, str, str]:
    if rate.is_of_step or run.duration_s is None:
        row = max(rows, key=lambda row: row.step_flops_per_s)
        times = rate.flops_per_s / row.step_flops_per_s
        line = f"best on record: {teraflops(row.step_flops_per_s)} in a step ({row.name}); the claim is {times:.2f} times that"
        return times, line, unlike(run.precision, row.precision)
    row = min(rows, key=lambda row: row.gpu_minutes)
    claimed = run.gpus * run.duration_s.value / MINUTE
    times = row.gpu_minutes / claimed
    fastest = max(row.step_flops_per_s for row in rows)
    if (run.samples or run.tokens) and rate.flops_per_s / fastest > times:  # more samples than others needed
        return _against_row(run, replace(rate, is_of_step=True), rows)
    line = (
        f"best on record: {count(row.gpus)} GPUs x {figure(row.minutes)} min = {count(row.gpu_minutes)} GPU-minutes ({row.name}); "
        f"claimed {count(claimed)}: {times:.2f} times as good"
    )
    return times, line, unlike(run.precision, row.precision)


def _claimed(claim: Claim) -> Iterator[Statement]:
    """Statements on claimed tokens per second, TFLOP/s and MFU: whether they are possible, and what the claim's other numbers give."""
    run = claim.run
    if claim.tokens_per_s:
        yield _throughput(run, claim.tokens_per_s)
    if claim.tokens_per_s_per_gpu:
        yield _throughput(replace(run, gpus=1), claim.tokens_per_s_per_gpu)
    if claim.tflops_per_gpu and run.accelerator:
        rate = Rate(claim.tflops_per_gpu * TERA, (f"rate: {teraflops(claim.tflops_per_gpu * TERA)} each, as claimed",), is_of_step=True)
        yield judged(replace(run, benchmark="", gpus=run.gpus or 1), rate, "TFLOP/s")
        yield from _follows(claim, claim.tflops_per_gpu * TERA, "TFLOP/s")
    if claim.mfu_pct and run.accelerator and run.precision:
        yield from _mfu(claim)
    elif claim.mfu_pct:
        why = "a share of a peak means nothing without accelerator and precision"
        yield Statement(about="MFU", verdict=UNKNOWN, why=why, arithmetic=(f"claimed: {figure(claim.mfu_pct.value)} %",))


def _throughput(run: Run, tokens_per_s: float) -> Statement:
    """The statement on tokens per second of so many accelerators."""
    work = run_work(replace(run, tokens=tokens_per_s))
    if work is None or not (run.gpus and run.accelerator):
        why = "tokens per second mean nothing without accelerator, gpus and what was trained"
        line = f"claimed: {figure(tokens_per_s)} tokens per second"
        return Statement(about="throughput", verdict=UNKNOWN, why=why, arithmetic=(line,))
    return judged(run, replace(_rate(work, run.gpus, 1.0, "second"), is_of_step=True), "throughput")


def _mfu(claim: Claim) -> Iterator[Statement]:
    assert claim.mfu_pct is not None
    run = claim.run
    chip = accelerator(run.accelerator)
    peak = chip.peak_flops_per_s(run.precision) if chip.can_run(run.precision) else max(chip.dense_flops_per_s.values())
    rate = claim.mfu_pct.value / 100 * peak
    line = f"rate: {figure(claim.mfu_pct.value)} % of {teraflops(peak)} = {teraflops(rate)} each"
    yield judged(replace(run, benchmark="", gpus=run.gpus or 1), Rate(rate, (line,), is_of_step=True), "MFU")
    yield from _follows(claim, rate, "MFU")


def _follows(claim: Claim, claimed: float, about: str) -> Iterator[Statement]:
    """Whether a claimed rate follows from the claimed work and time, with any usual way to count attention.

    The rate of the steps may be higher than that of the whole run, which includes evaluations.
    """
    run = claim.run
    work, time_s = (step_work(run), run.step_s) if run.step_s else (run_work(run), run.duration_s)
    is_claimed = run.step_s or run.samples or run.tokens
    if work is None or time_s is None or not run.gpus or not is_claimed:
        return
    rate = _rate(work, run.gpus, time_s.value, "step" if run.step_s else "run")
    least, most = attention_range(run)
    most *= 1.0 if run.step_s else MOST_EVALUATING
    ratio = claimed / rate.flops_per_s
    holds = least * (1 - ROUNDING) <= ratio <= most * (1 + ROUNDING)
    lines = (
        *rate.lines,
        f"claimed {teraflops(claimed)}: {ratio:.3f} times that; {least:.3f} to {most:.3f} pass, from no attention to all of it",
    )
    why = "it follows from the claim's own numbers" if holds else f"the claim's own numbers give {teraflops(rate.flops_per_s)}"
    yield Statement(about=f"{about} by its own numbers", verdict=CONSISTENT if holds else MISLEADING, why=why, arithmetic=lines)
