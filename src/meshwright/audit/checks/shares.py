"""A part of a total in per cent."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.audit.claim import Claim
from meshwright.audit.figures import figure
from meshwright.audit.stated import Stated, exactly
from meshwright.audit.verdict import CONSISTENT, IMPOSSIBLE, MISLEADING, UNSUPPORTED, Statement


def check(claim: Claim) -> Iterator[Statement]:
    """A statement on a claimed share."""
    if claim.part is not None and claim.total and claim.share_pct is not None:
        yield _judged(claim.part, claim.total, claim.share_pct)
    elif claim.part is not None and claim.total and claim.part > claim.total:
        yield _more_than_all(claim.part, claim.total)
    elif claim.share_pct is not None:
        why = "a share needs its part and its total, and the claim does not give both"
        yield Statement(about="share", verdict=UNSUPPORTED, why=why, arithmetic=(f"claimed: {claim.share_pct.value:g} %",))


def _judged(part: float, total: float, claimed: Stated) -> Statement:
    if part > total:
        return _more_than_all(part, total)
    share = 100 * part / total
    lines = [f"share: {figure(part)} / {figure(total)} = {share:.2f} %; claimed {claimed.value:g} %"]
    if claimed.agrees(exactly(share)):
        return Statement(
            about="share", verdict=CONSISTENT, why=f"{figure(part)} of {figure(total)} is {share:.1f} %", arithmetic=tuple(lines)
        )
    if claimed.value:
        lines.append(f"{claimed.value:g} % would be {figure(claimed.value / 100 * total)} of {figure(total)}")
    why = f"{figure(part)} of {figure(total)} is {share:.1f} %, not {claimed.value:g} %"
    return Statement(about="share", verdict=MISLEADING, why=why, arithmetic=tuple(lines))


def _more_than_all(part: float, total: float) -> Statement:
    line = f"{figure(part)} > {figure(total)}"
    return Statement(about="share", verdict=IMPOSSIBLE, why="the part is more than the whole", arithmetic=(line,))
