"""Speed-ups.

Whether the ratio is inverted, whether it exceeds the noise, whether the baseline is current, and whether throughput explains it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.audit.claim import Claim, Run
from meshwright.audit.figures import count, figure, minutes, percent
from meshwright.audit.rules import round_order
from meshwright.audit.stated import Stated, exactly
from meshwright.audit.submissions import Submission, before, fastest, find, noise
from meshwright.audit.verdict import CONSISTENT, IMPOSSIBLE, MISLEADING, UNKNOWN, UNSUPPORTED, Statement
from meshwright.audit.work import samples_of
from meshwright.describe.load import load_model
from meshwright.units import MINUTE

TABLE_ROUNDING = 0.02  # of a time from our table: published scores are means of the middle runs
LEAST_SHARE = 0.5  # share of a speed-up that throughput must explain


@dataclass(frozen=True, slots=True)
class Timed:
    """What is known about a run, from the claim or from the table."""

    run: Run
    time_s: Stated | None
    step_s: Stated | None
    samples: float
    row: Submission | None
    unit: str = "samples"  # or tokens, if only these are known for both runs

    def where(self, of: str) -> str:
        """Where its time comes from, or with `of` "step" that of its step."""
        claimed = self.run.step_s if of == "step" else self.run.duration_s
        return f"on record: {self.row.name}" if self.row and not claimed else "as claimed"


def check(claim: Claim) -> Iterator[Statement]:
    """Statements on a claimed speed-up."""
    if claim.speedup is None:
        return
    if claim.baseline is None:
        why = "the claim does not say what it is faster than: give the baseline"
        yield Statement(about="speed-up", verdict=UNSUPPORTED, why=why, arithmetic=(f"claimed: {claim.speedup.value:g} times",))
    elif claim.baseline.record:
        yield _over_record(claim, claim.speedup)
    else:
        yield from _over_baseline(claim, claim.speedup, _timed(claim.run), _timed(claim.baseline))


def _over_record(claim: Claim, claimed: Stated) -> Statement:
    """A speed-up over the fastest earlier result: that result must not be faster than the claim."""
    run = claim.run
    if not (run.benchmark and run.duration_s):
        why = "a record needs a benchmark and a time"
        return Statement(about="speed-up", verdict=UNKNOWN, why=why, arithmetic=(f"claimed: {claimed.value:g} times",))
    record = fastest(_earlier(run, claimed, find(benchmark=run.benchmark)))
    if record is None:
        why = f"our table has no result of {run.benchmark} before {run.round or 'this one'}"
        return Statement(about="speed-up", verdict=UNKNOWN, why=why, arithmetic=(f"claimed: {claimed.value:g} times",))
    ratio = exactly(record.minutes * MINUTE).over(run.duration_s)
    lines = [
        f"implied record: {claimed.value:g} x {minutes(run.duration_s.value)} = {minutes(claimed.value * run.duration_s.value)}",
        f"fastest before{f' {run.round}' if run.round else ' it'} on record: {figure(record.minutes)} min ({record.name})",
        f"speed-up: {figure(record.minutes)} min / {minutes(run.duration_s.value)} = {ratio.value:.3f}; claimed {claimed.value:g}",
    ]
    if ratio.high < 1:
        why = f"the record was already {figure(record.minutes)} min: {minutes(run.duration_s.value)} is slower"
        return Statement(about="speed-up", verdict=IMPOSSIBLE, why=why, arithmetic=tuple(lines))
    holds = claimed.agrees(ratio.widened(TABLE_ROUNDING)) or claimed.high < ratio.low
    why = f"over the earlier record it is {ratio.value:.2f} times{', more than claimed' if claimed.high < ratio.low else ''}"
    return Statement(about="speed-up", verdict=CONSISTENT if holds else MISLEADING, why=why, arithmetic=tuple(lines))


def _earlier(run: Run, claimed: Stated, rows: list[Submission]) -> list[Submission]:
    """The rows before the run's round.

    If no round is given, those before the last round in which such a speed-up over the record is true, or all.
    """
    if run.round:
        return before(run.round, rows)
    for name in sorted({row.round for row in rows}, key=round_order, reverse=True):
        record = fastest(before(name, rows))
        if record and run.duration_s and claimed.agrees(exactly(record.minutes * MINUTE).over(run.duration_s).widened(TABLE_ROUNDING)):
            return before(name, rows)
    return rows


def _timed(run: Run) -> Timed:
    """What is known about a run. The table adds what the claim leaves out, if it has exactly this submission."""
    rows = find(**run.lookup) if run.benchmark and run.accelerator and run.gpus else []
    row = fastest(rows) or (rows[0] if rows else None)
    time_s, step_s, samples = run.duration_s, run.step_s, samples_of(run)
    if row:
        if time_s is None and row.minutes > 0:
            time_s = exactly(row.minutes * MINUTE)
        step_s = step_s or exactly(row.step_s)
        samples = samples or (row.samples if row.samples > 0 else 0.0)
        run = replace(run, global_batch=run.global_batch or row.global_batch)
    return Timed(run, time_s, step_s, samples, row)


def _over_baseline(claim: Claim, claimed: Stated, new: Timed, base: Timed) -> Iterator[Statement]:
    unlike = _unlike(new.run, base.run)
    if unlike:
        why = f"the two runs are of different {unlike}"
        yield Statement(about="speed-up", verdict=MISLEADING, why=why, arithmetic=(f"claimed: {claimed.value:g} times",))
        return
    if not (new.samples and base.samples) and new.run.tokens and base.run.tokens:
        new, base = (replace(one, samples=one.run.tokens, unit="tokens") for one in (new, base))
    ratio, line = _ratio(claim.speedup_of, new, base)
    if ratio is None:
        yield Statement(about="speed-up", verdict=UNSUPPORTED, why=line, arithmetic=(f"claimed: {claimed.value:g} times",))
        return
    is_from_table = claim.run.duration_s is None or claim.baseline is None or claim.baseline.duration_s is None
    lines = [f"{one}: {timed.where(claim.speedup_of)}" for one, timed in (("run", new), ("baseline", base))]
    lines.append(f"{line}; claimed {claimed.value:g}")
    agreed = ratio.widened(TABLE_ROUNDING) if is_from_table or claim.speedup_of == "throughput" else ratio
    carried = claim.speedup_of == "time" and _throughput(new, base)
    inverse = Stated(1 / agreed.value, 1 / agreed.high, 1 / agreed.low)
    if claimed.agrees(agreed) and not (claimed.agrees(exactly(inverse.value)) and not claimed.agrees(exactly(agreed.value))):
        yield _noise(claimed, new, base, lines)
    elif carried and 1 < claimed.low <= carried * (1 + TABLE_ROUNDING) <= ratio.value * (1 + TABLE_ROUNDING):
        lines.append(f"in throughput alone: {carried:.3f}")
        yield Statement(about="speed-up", verdict=CONSISTENT, why=f"throughput alone gives {carried:.3f}", arithmetic=tuple(lines))
    elif claim.faster_pct and claim.faster_pct.agrees(_less_pct(agreed)):
        lines.append(f"less time: 1 - 1 / {ratio.value:.3f} = {percent(1 - 1 / ratio.value)}; claimed {claim.faster_pct.value:g} %")
        why = f"it takes {claim.faster_pct.value:g} % less time, which is {ratio.value:.3f} times as fast"
        yield Statement(about="speed-up", verdict=CONSISTENT, why=why, arithmetic=tuple(lines))
    elif claimed.agrees(inverse):
        why = f"the ratio is upside down: it is {ratio.value:.3f}, and {claimed.value:g} its inverse"
        yield Statement(about="speed-up", verdict=MISLEADING, why=why, arithmetic=tuple(lines))
    else:
        why = f"the two runs give {ratio.value:.3f}, not {claimed.value:g}"
        yield Statement(about="speed-up", verdict=MISLEADING, why=why, arithmetic=tuple(lines))
    if claim.speedup_of == "step":
        yield from _of_steps(claimed, new, base)
    if claim.speedup_of == "time":
        yield from _split(claimed, new, base)
        yield from _stale(claimed, new, base)


def _unlike(run: Run, base: Run) -> str:
    """How the trained models or data of the two runs differ; empty if they do not."""
    if run.benchmark != base.benchmark:
        return f"benchmarks: {run.benchmark or 'none'} and {base.benchmark or 'none'}"
    if run.model and base.model and load_model(run.model).name != load_model(base.model).name:
        return f"models: {run.model} and {base.model}"
    if run.parameters and base.parameters and run.parameters != base.parameters:
        return f"sizes: {figure(run.parameters)} and {figure(base.parameters)} parameters"
    return ""


def _of_steps(claimed: Stated, new: Timed, base: Timed) -> Iterator[Statement]:
    """Whether shorter steps mean a faster run: with fewer sequences per step they may not."""
    loop = _loop(new, base)
    if loop is None or new.run.global_batch == base.run.global_batch:
        return
    about, lines = "work of a step", (loop[1],)
    if claimed.value > 1 and claimed.low > loop[0] * (1 + TABLE_ROUNDING):
        had = f"a step has {count(new.run.global_batch)} sequences and had {count(base.run.global_batch)}"
        why = f"{had}: in sequences per second it is {loop[0]:.2f} times"
        yield Statement(about=about, verdict=MISLEADING, why=why, arithmetic=lines)
    else:
        yield Statement(about=about, verdict=CONSISTENT, why=f"in sequences per second it is {loop[0]:.2f} times", arithmetic=lines)


def _less_pct(ratio: Stated) -> Stated:
    """By how many per cent the time is shorter for a given speed-up."""
    return Stated(*(100 * (1 - 1 / value) for value in (ratio.value, ratio.low, ratio.high)))


def _stale(claimed: Stated, new: Timed, base: Timed) -> Iterator[Statement]:
    """Whether the baseline's machine has a faster result in the run's own round, because software improves from round to round."""
    run, old = new.run, base.run
    is_older = run.round and old.round and round_order(old.round) < round_order(run.round)
    if not (is_older and new.time_s and base.time_s and old.benchmark and old.accelerator and old.gpus):
        return
    row = fastest(find(round=run.round, benchmark=old.benchmark, accelerator=old.accelerator, gpus=old.gpus))
    if row is None or row.minutes * MINUTE > base.time_s.value:
        return
    ratio = row.minutes * MINUTE / new.time_s.value
    lines = (f"the baseline's machine in {run.round}: {figure(row.minutes)} min ({row.name})", f"over that it is {ratio:.3f} times")
    if claimed.low > ratio * (1 + TABLE_ROUNDING):
        why = f"the baseline is of {old.round}; over the same machine in {run.round} it is {ratio:.2f} times"
        yield Statement(about="age of the baseline", verdict=MISLEADING, why=why, arithmetic=lines)
    else:
        why = "it holds over the baseline's machine of the same round too"
        yield Statement(about="age of the baseline", verdict=CONSISTENT, why=why, arithmetic=lines)


def _ratio(of: str, new: Timed, base: Timed) -> tuple[Stated | None, str]:
    """The speed-up of the claimed quantity, and how it is computed; None and what is missing if it cannot be computed."""
    if of == "throughput":
        value = _throughput(new, base)
        line = f"speed-up in {new.unit} per second: {value:.3f}" if value else ""
        return (exactly(value), line) if value else (None, "a speed-up in throughput needs times and samples of both runs")
    one, other = (new.step_s, base.step_s) if of == "step" else (new.time_s, base.time_s)
    loop = _loop(new, base)
    if of == "time" and not (one and other) and loop:
        return exactly(loop[0]), f"speed-up {loop[1]}"
    if not (one and other):
        return None, "the times of both runs are not given, and our table does not have them"
    ratio = other.over(one)
    return ratio, f"speed-up: {figure(other.value)} s / {figure(one.value)} s = {ratio.value:.3f}"


def _throughput(new: Timed, base: Timed) -> float:
    """Samples a second of the run over those of its baseline; 0 where either is not known."""
    if not (new.time_s and base.time_s and new.samples and base.samples):
        return 0.0
    return (new.samples / new.time_s.value) / (base.samples / base.time_s.value)


def _noise(claimed: Stated, new: Timed, base: Timed, lines: list[str]) -> Statement:
    spread = noise([timed.row for timed in (new, base) if timed.row])
    lines = [*lines, f"runs of one machine differ by {percent(spread)}"]
    if abs(claimed.value - 1) < spread:
        why = f"a difference of {percent(abs(claimed.value - 1))} is less than runs of one machine differ by ({percent(spread)})"
        return Statement(about="speed-up", verdict=MISLEADING, why=why, arithmetic=tuple(lines))
    return Statement(about="speed-up", verdict=CONSISTENT, why=f"the ratio of the two times is {claimed.value:g}", arithmetic=tuple(lines))


def _split(claimed: Stated, new: Timed, base: Timed) -> Iterator[Statement]:
    """Time to the target = samples x seconds per sample: which of the two made the difference, and how many more GPUs were used."""
    if new.run.gpus and base.run.gpus and new.run.accelerator != base.run.accelerator and new.run.gpus != base.run.gpus:
        yield _per_gpu(claimed, new, base)
    throughput = _throughput(new, base)
    if not throughput or claimed.value <= 1 or throughput == 0:
        return
    assert new.time_s is not None and base.time_s is not None
    convergence, less = base.samples / new.samples, "convergence" if new.unit == "samples" else "work"
    total = base.time_s.value / new.time_s.value
    lines = [
        f"throughput: ({count(new.samples)} / {figure(new.time_s.value)} s) / ({count(base.samples)} / {figure(base.time_s.value)} s) "
        f"= {throughput:.3f}",
        f"{less}: {count(base.samples)} / {count(new.samples)} {new.unit} = {convergence:.3f}",
        f"time: {throughput:.3f} x {convergence:.3f} = {total:.3f}",
    ]
    loop = _loop(new, base)
    lines += [loop[1]] if loop else []
    share = math.log(throughput) / math.log(total) if total > 1 else 1.0
    if share >= LEAST_SHARE or claimed.low <= throughput * (1 + TABLE_ROUNDING):
        alone = f"no more is claimed than throughput alone gives, {throughput:.3f}"
        why = f"throughput carries {percent(share)} of it" if share >= LEAST_SHARE else alone
        yield Statement(about="throughput or convergence", verdict=CONSISTENT, why=why, arithmetic=tuple(lines))
        return
    inside = f"; in the training loop itself {loop[0]:.2f}" if loop else ""
    fewer = "fewer samples to converge" if new.unit == "samples" else "fewer tokens"
    why = f"{total:.3f} = {throughput:.3f} throughput x {convergence:.3f} {fewer}{inside}: not a faster machine"
    yield Statement(about="throughput or convergence", verdict=MISLEADING, why=why, arithmetic=tuple(lines))


def _loop(new: Timed, base: Timed) -> tuple[float, str] | None:
    """Sequences a second within the training loop, run over baseline; None where step times or batches are not known."""
    if not (new.step_s and base.step_s and new.run.global_batch and base.run.global_batch):
        return None
    ratio = (new.run.global_batch / new.step_s.value) / (base.run.global_batch / base.step_s.value)
    return ratio, (
        f"in the loop: ({count(new.run.global_batch)} / {figure(new.step_s.value)} s) / ({count(base.run.global_batch)} / "
        f"{figure(base.step_s.value)} s) = {ratio:.3f}"
    )


def _per_gpu(claimed: Stated, new: Timed, base: Timed) -> Statement:
    ratio = new.run.gpus / base.run.gpus
    each = claimed.value / ratio
    lines = (f"{claimed.value:g} / ({count(new.run.gpus)} / {count(base.run.gpus)} GPUs) = {each:.3f} for each GPU",)
    if ratio > 1 and each <= 1 < claimed.value:
        why = f"with {ratio:.2f} times as many GPUs; for each it is {each:.2f} times"
        return Statement(about="speed-up of each GPU", verdict=MISLEADING, why=why, arithmetic=lines)
    return Statement(about="speed-up of each GPU", verdict=CONSISTENT, why=f"for each GPU it is {each:.2f} times", arithmetic=lines)
