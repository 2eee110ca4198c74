"""The result of an audit for one statement: a verdict, its reason and its arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import InputError, nearest

CONSISTENT, UNKNOWN, UNSUPPORTED = "consistent", "unknown", "unsupported"
MISLEADING, IMPLAUSIBLE, IMPOSSIBLE = "misleading", "implausible", "impossible"

# From the best to the worst. The verdict on a claim is the worst verdict of its statements.
MEANING = {
    CONSISTENT: "the arithmetic holds, and nothing on record contradicts it",
    UNKNOWN: "what would decide it is not in our tables",
    UNSUPPORTED: "nothing public supports it",
    MISLEADING: "its own numbers, or the public logs, say something else",
    IMPLAUSIBLE: "beyond anything measured, though not beyond physics",
    IMPOSSIBLE: "against physics, or against a result that is on record",
}
VERDICTS = tuple(MEANING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One statement of a claim, with its verdict."""

    about: str
    verdict: str  # one of VERDICTS
    why: str  # one sentence
    arithmetic: tuple[str, ...]  # a line each, numbers with units

    def __post_init__(self) -> None:
        assert self.verdict in VERDICTS, self.verdict


def severity(verdict: str) -> int:
    """How bad a verdict is: 0 for consistent, 5 for impossible."""
    if verdict not in VERDICTS:
        raise InputError(f"no verdict named {verdict!r}", fix=f"{nearest(verdict, VERDICTS)} (from the best: {', '.join(VERDICTS)})")
    return VERDICTS.index(verdict)
