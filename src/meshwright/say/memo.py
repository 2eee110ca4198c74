"""A memo: one page for a person who must decide, about a judged claim or about recomputed logs."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.say.document import Finding, Table

PASS, OPEN, FAIL = "pass", "open", "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A claimed value next to a forecast and its interval, for a small picture, with the texts that people read."""

    name: str
    claimed: float
    value: float
    low: float
    high: float
    claimed_text: str
    value_text: str
    interval_text: str
    words: str  # where the claim lies


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A list or tables under a heading; not shown if it is empty."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memo:
    """A page that can be forwarded."""

    kind: str  # what it is, above the title
    title: str
    outcome: str  # PASS, OPEN or FAIL
    verdict: str  # one word
    headline: str  # one sentence
    second: str = ""  # another, where there is one
    findings: tuple[Finding, ...] = ()
    ranges: tuple[Range, ...] = ()
    ranges_remark: str = ""  # what the forecast was made for, or why there is none
    parts: tuple[Part, ...] = ()
    footer: str = ""
