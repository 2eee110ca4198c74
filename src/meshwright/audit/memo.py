"""A judgement as a memo in Markdown, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.audit.judge import Judgement
from meshwright.audit.printable import escaped
from meshwright.audit.verdict import MEANING, Statement


def as_json(judgement: Judgement) -> dict[str, Any]:
    """The verdict and the statements; arithmetic is a list of lines."""
    claim = judgement.claim
    return {
        "verdict": judgement.verdict,
        "why": judgement.why,
        "claim": claim.text,
        "file": claim.where,
        "expected": claim.expected or None,
        "statements": [_statement(statement) for statement in judgement.statements],
    }


def _statement(statement: Statement) -> dict[str, Any]:
    return {
        "about": statement.about,
        "verdict": statement.verdict,
        "why": statement.why,
        "arithmetic": list(statement.arithmetic),
    }


def as_markdown(judgement: Judgement) -> str:
    """The memo."""
    return "\n".join(_lines(judgement)) + "\n"


def _lines(judgement: Judgement) -> Iterator[str]:
    claim = judgement.claim
    yield f"# {escaped(claim.text or 'A claim')}"
    yield ""
    yield f"**{judgement.verdict.capitalize()}** ({MEANING[judgement.verdict]}): {escaped(judgement.why)}."
    if claim.source:
        yield f"Source of the claim: {escaped(claim.source)}."
    yield ""
    yield "| statement | verdict | why |"
    yield "| --- | --- | --- |"
    for one in judgement.statements:
        yield f"| {escaped(one.about)} | {one.verdict} | {escaped(one.why)} |"
    yield ""
    yield "## Arithmetic"
    for one in judgement.statements:
        yield ""
        yield f"{escaped(one.about)}:"
        yield ""
        yield from (f"- {escaped(line)}" for line in one.arithmetic)
