"""How much step times vary: which variation is meant, and what the logs show."""

from __future__ import annotations

import math
from collections.abc import Iterator

from meshwright.audit.claim import VARIATIONS, Claim
from meshwright.audit.figures import count
from meshwright.audit.submissions import Submission
from meshwright.audit.verdict import CONSISTENT, MISLEADING, UNSUPPORTED, Statement
from meshwright.audit.work import alike
from meshwright.units import MINUTE

FACTOR = 2.0  # a spread within this factor of the log's counts as the same: estimates of spreads are rough


def check(claim: Claim) -> Iterator[Statement]:
    """A statement on a claimed variation of step times."""
    if claim.variation_pct is None:
        return
    run = claim.run
    row = next(iter(alike(run)), None)
    measured = _measured(row) if row else {}
    lines = [f"claimed: {_range(claim.variation_pct)}"]
    lines += [f"on record, {name}: {value:.2g} % ({how})" for name, (value, how) in measured.items()]
    if not claim.variation_of:
        why = f"it does not say of what: {', '.join(VARIATIONS[:-1])} and {VARIATIONS[-1]} are different numbers"
        yield Statement(about="variation", verdict=UNSUPPORTED, why=why, arithmetic=tuple(lines))
    elif claim.variation_of not in measured:
        why = "no public log of such a run is known to us" if not row else f"our table does not have the {claim.variation_of} variation"
        named = bool(run.log)
        verdict = CONSISTENT if named else UNSUPPORTED
        yield Statement(about="variation", verdict=verdict, why=f"a log is named: {run.log}" if named else why, arithmetic=tuple(lines))
    else:
        yield _judged(claim.variation_pct, claim.variation_of, measured[claim.variation_of][0], lines)


def _judged(claimed: tuple[float, float], of: str, value: float, lines: list[str]) -> Statement:
    low, high = claimed
    holds = low / FACTOR <= value <= high * FACTOR
    if holds:
        return Statement(about="variation", verdict=CONSISTENT, why=f"the logs' {of} variation is {value:.2g} %", arithmetic=tuple(lines))
    times = value / high if value > high else low / value
    why = f"the logs' {of} variation is {value:.2g} %, {times:.1f} times {'more' if value > high else 'less'}"
    return Statement(about="variation", verdict=MISLEADING, why=why, arithmetic=tuple(lines))


def _measured(row: Submission) -> dict[str, tuple[float, str]]:
    """The three spreads of a submission that its row gives, in per cent, and how each comes about."""
    found: dict[str, tuple[float, str]] = {}
    if row.robust_std_pct > 0:
        found["within-run"] = row.robust_std_pct, "1.4826 x median absolute deviation of the steps of a run"
        steps = row.minutes * MINUTE / row.step_s if not row.samples > 0 else row.samples / row.global_batch
        if steps > 1:
            error = row.robust_std_pct / math.sqrt(steps)
            found["standard-error"] = error, f"{row.robust_std_pct:.2g} % / sqrt({count(steps)} steps), of a run's mean"
    if row.run_spread_pct > 0:
        found["between-runs"] = row.run_spread_pct, "between the median steps of its logs"
    return found


def _range(claimed: tuple[float, float]) -> str:
    low, high = claimed
    return f"+-{low:g} %" if low == high else f"+-{low:g} to {high:g} %"
