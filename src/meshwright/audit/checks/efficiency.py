"""Scaling efficiency: T_base / T_new x work ratio, whether it is inverted, and whether it exceeds the noise between runs."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count, percent
from meshwright.audit.stated import Stated, exactly
from meshwright.audit.submissions import find, noise
from meshwright.audit.verdict import CONSISTENT, IMPLAUSIBLE, MISLEADING, UNSUPPORTED, Statement

SAME_BATCH = 0.05  # of a ratio of batches: a batch must divide by replicas and micro-batches
MOST = 1.1  # an efficiency further above 1 than caches and clocks explain


def check(claim: Claim) -> Iterator[Statement]:
    """A statement on a claimed scaling efficiency."""
    if claim.efficiency_pct is None:
        return
    run, base = claim.run, claim.baseline
    times = _times(run, base)
    if times is None or base is None:
        yield _alone(claim.efficiency_pct)
        return
    turned = bool(run.gpus and base.gpus and run.gpus < base.gpus)
    if turned:  # efficiency is about growth: from the smaller machine to the larger
        run, base, times = base, run, (times[1], times[0])
    factor, line = _work_ratio(claim, run, base)
    if factor is None:
        yield Statement(about="efficiency", verdict=UNSUPPORTED, why=line, arithmetic=(f"claimed: {claim.efficiency_pct.value:g} %",))
        return
    lines = [f"from {count(base.gpus)} to {count(run.gpus)} GPUs: the baseline is the larger machine", line] if turned else [line]
    yield _judged(claim, claim.efficiency_pct, times[1].over(times[0]).times(factor), lines, times)
    yield from _kind(claim.scaling, run, base)
    yield _noise(run, base, times)


def _alone(claimed: Stated) -> Statement:
    """The statement on an efficiency without times."""
    line = f"claimed: {claimed.value:g} %"
    if claimed.low > 100 * MOST:
        why = "more than all of the work, and the two times that would show it are not given"
        return Statement(about="efficiency", verdict=IMPLAUSIBLE, why=why, arithmetic=(line, f"passes: up to {100 * MOST:g} %"))
    why = "an efficiency needs two times, one at each size, and the claim does not give both"
    return Statement(about="efficiency", verdict=UNSUPPORTED, why=why, arithmetic=(line,))


def _times(run: Run, base: Run | None) -> tuple[Stated, Stated] | None:
    """Seconds of the run and of its baseline, of the same kind: steps, or whole runs."""
    if base is None:
        return None
    if run.step_s and base.step_s:
        return run.step_s, base.step_s
    return (run.duration_s, base.duration_s) if run.duration_s and base.duration_s else None


def _work_ratio(claim: Claim, run: Run, base: Run) -> tuple[float | None, str]:
    """Work per accelerator in the run divided by that in the baseline, and how it was computed; or None and the reason."""
    if run.global_batch and base.global_batch and run.gpus and base.gpus:
        ratio = run.global_batch / run.gpus * base.gpus / base.global_batch
        return ratio, (
            f"work of a GPU: ({count(run.global_batch)} / {count(run.gpus)}) / ({count(base.global_batch)} / {count(base.gpus)}) "
            f"= {ratio:.4f}"
        )
    if claim.scaling != "strong":
        return 1.0, "work of a GPU: the same at both sizes (weak scaling)"
    if not (run.gpus and base.gpus):
        return None, "a strong-scaling efficiency needs the number of GPUs at both sizes"
    ratio = base.gpus / run.gpus
    return ratio, f"work of a GPU: {count(base.gpus)} / {count(run.gpus)} = {ratio:.4f} (strong scaling)"


def _kind(scaling: str, run: Run, base: Run) -> Iterator[Statement]:
    """Whether the batches match the claimed scaling: in weak scaling the batch grows with the GPUs, in strong scaling it stays."""
    if not (scaling and run.global_batch and base.global_batch and run.gpus and base.gpus) or run.gpus == base.gpus:
        return
    grown, larger = run.global_batch / base.global_batch, run.gpus / base.gpus
    batches = f"batch: {count(run.global_batch)} / {count(base.global_batch)} = {grown:.3f}"
    line = f"{batches}; GPUs: {count(run.gpus)} / {count(base.gpus)} = {larger:.3f}"
    if abs(grown / (1.0 if scaling == "strong" else larger) - 1) <= SAME_BATCH:
        yield Statement(about="kind of scaling", verdict=CONSISTENT, why=f"the batches are those of {scaling} scaling", arithmetic=(line,))
        return
    other = "weak" if scaling == "strong" else "strong"
    is_other = abs(grown / (larger if scaling == "strong" else 1.0) - 1) <= SAME_BATCH
    why = f"the batches are not those of {scaling} scaling{f', but of {other}' if is_other else ''}"
    yield Statement(about="kind of scaling", verdict=MISLEADING, why=why, arithmetic=(line,))


def _judged(claim: Claim, claimed: Stated, share: Stated, lines: list[str], times: tuple[Stated, Stated]) -> Statement:
    new, base = times
    efficiency = share.times(100)
    factor = share.value * new.value / base.value
    work = "" if abs(factor - 1) < 1e-9 else f" x {factor:.4f}"
    lines.append(f"efficiency: {base.value:g} s / {new.value:g} s{work} = {efficiency.value:.2f} %; claimed {claimed.value:g} %")
    inverse = new.over(base).times(100 / factor)
    is_inverse = claimed.agrees(inverse) and (not claimed.agrees(efficiency) or _is_nearer(claimed, inverse, efficiency))
    if claimed.agrees(efficiency) and not is_inverse:
        verdict = CONSISTENT if share.value <= MOST else IMPLAUSIBLE
        why = f"{base.value:g} / {new.value:g}{work} is {efficiency.value:.2f} %"
        if verdict == IMPLAUSIBLE:
            why += ": more than all of the work, so the two runs are not alike"
        elif efficiency.low > 100:
            why += ": above 100 %, so more than the number of GPUs differs, or it is noise"
        return Statement(about="efficiency", verdict=verdict, why=why, arithmetic=tuple(lines))
    if is_inverse:
        lines.append(f"upside down: {new.value:g} s / {base.value:g} s{work.replace('x', '/')} = {inverse.value:.2f} %")
        ratio = f"{base.value:g} / {new.value:g}{work}"
        why = f"the ratio is upside down: {ratio} is {efficiency.value:.2f} %, and {claimed.value:g} % its inverse"
        return Statement(about="efficiency", verdict=MISLEADING, why=why, arithmetic=tuple(lines))
    why = f"its own times give {efficiency.value:.2f} %, not {claimed.value:g} %"
    return Statement(about="efficiency", verdict=MISLEADING, why=why, arithmetic=tuple(lines))


def _is_nearer(claimed: Stated, one: Stated, other: Stated) -> bool:
    """Whether the claimed value is `one` to the last digit, and `other` only because times are rounded."""
    return claimed.agrees(exactly(one.value)) and not claimed.agrees(exactly(other.value))


def _noise(run: Run, base: Run, times: tuple[Stated, Stated]) -> Statement:
    """Whether the two times differ by more than runs of one machine do. If not, the claim is not wrong, but the reader should know."""
    rows = [row for one in (run, base) if one.gpus and one.accelerator for row in find(**one.lookup)]
    spread = noise(rows)
    difference = abs(times[0].value / times[1].value - 1)
    whose = next((row.name for row in rows if row.run_spread_pct / 100 == spread), "the median of our table")
    lines = (
        f"difference: |{times[0].value:g} / {times[1].value:g} - 1| = {percent(difference)}",
        f"runs of one machine differ by {percent(spread)} ({whose})",
    )
    below = difference < spread
    why = (
        f"the two times differ by {percent(difference)}, less than runs of one machine do ({percent(spread)}): no difference is shown"
        if below
        else f"the two times differ by more than runs of one machine do ({percent(spread)})"
    )
    return Statement(about="difference against noise", verdict=CONSISTENT, why=why, arithmetic=lines)
