"""Judged claims as a document for the terminal and for JSON, and as a memo in Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshwright.audit.claim import Claim
from meshwright.audit.judge import Judgement
from meshwright.audit.own_forecast import Compared, OwnForecast
from meshwright.audit.printable import escaped, one_line
from meshwright.audit.verdict import MEANING, Statement
from meshwright.say.document import Block, Document, Finding, Note, Table, Text
from meshwright.say.forecast import forecast_values


def claims_document(judgements: Sequence[Judgement]) -> Document:
    """Judged claims: each with its verdict, and every statement with its reason and its arithmetic."""
    blocks = tuple(block for judgement in judgements for block in _blocks(judgement))
    return Document(kind="claims", title="claims", blocks=blocks, values={"claims": [judgement_values(one) for one in judgements]})


def _blocks(judgement: Judgement) -> Iterator[Block]:
    claim = judgement.claim
    yield Text(one_line(claim.text) or "the claim")
    yield Finding(judgement.verdict, "", one_line(judgement.why))
    for name, value in (("source", claim.source), ("file", claim.where), ("expected", _expected(judgement))):
        if value:
            yield Text(f"{name}: {one_line(value)}")
    for one in judgement.statements:
        yield Finding(one.verdict, one.about, one_line(one.why), tuple(map(one_line, one.arithmetic)))
    yield from _forecast_blocks(judgement.forecast)


FORECAST_COLUMNS = ("meshwright's own forecast", "claimed>", "forecast>", "80 % interval>", "the claim is")


def _forecast_blocks(own: OwnForecast | None) -> Iterator[Block]:
    if own is None:
        return
    if own.forecast is None:
        yield Text(one_line(f"no forecast of meshwright's own: {own.missing}"))
        return
    yield Table("", FORECAST_COLUMNS, _forecast_rows(own))
    yield Text(one_line(f"forecast of {own.made_for}"))
    yield from (Text(one_line(f"assumed: {line}")) for line in own.assumed)
    yield from (Note(one_line(note)) for note in own.forecast.notes)


def _forecast_rows(own: OwnForecast) -> tuple[tuple[str, ...], ...]:
    return tuple((one.quantity, one.shown(one.claimed.value), one.shown(one.value), one.interval, one.words) for one in own.compared)


def _expected(judgement: Judgement) -> str:
    expected = judgement.claim.expected
    return f"{expected} ({'as found' if expected == judgement.verdict else 'not as found'})" if expected else ""


def judgement_values(judgement: Judgement) -> dict[str, Any]:
    """The verdict and the statements; arithmetic is a list of lines."""
    claim = judgement.claim
    return {
        "verdict": judgement.verdict,
        "why": judgement.why,
        "claim": claim.text,
        "where": claim.where,
        "expected_verdict": claim.expected or None,
        "statements": [_statement(statement) for statement in judgement.statements],
        "own_forecast": _forecast_values(judgement.forecast),
    }


def _forecast_values(own: OwnForecast | None) -> dict[str, Any] | None:
    if own is None:
        return None
    return {
        "missing": own.missing or None,
        "compared": [_compared_values(one) for one in own.compared],
        "is_layout_stated": own.is_layout_stated,
        "assumptions": list(own.assumed),
        "best_forecast": forecast_values(own.forecast) if own.forecast else None,
    }


def _compared_values(one: Compared) -> dict[str, Any]:
    return {
        "quantity": one.quantity,
        "unit": one.unit,
        "claimed_value": one.claimed.value / one.scale,
        "forecast_value": one.value / one.scale,
        "forecast_low": one.low / one.scale,
        "forecast_high": one.high / one.scale,
        "lies": one.lies,
        "beyond_ratio": one.beyond,
    }


def examples_document(folder: Path, claims: Sequence[tuple[Path, Claim]]) -> Document:
    """Example claims, with the verdict that each should get."""
    rows = tuple((path.name, one.expected, one.text) for path, one in claims)
    values = [{"path": str(path), "expected_verdict": one.expected or None, "claim": one.text} for path, one in claims]
    title = f"claims in {folder}"
    return Document(
        kind="claim-examples", title=title, blocks=(Table(title, ("file", "expected", "claim"), rows),), values={"examples": values}
    )


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
    yield from _forecast_lines(judgement.forecast)


def _forecast_lines(own: OwnForecast | None) -> Iterator[str]:
    if own is None:
        return
    yield from ("", "## meshwright's own forecast", "")
    if own.forecast is None:
        yield f"None: {escaped(own.missing)}."
        return
    yield "| " + " | ".join(("quantity", *(column.removesuffix(">") for column in FORECAST_COLUMNS[1:]))) + " |"
    yield "| --- | ---: | ---: | ---: | --- |"
    yield from ("| " + " | ".join(map(escaped, row)) + " |" for row in _forecast_rows(own))
    yield from ("", f"Forecast of {escaped(own.made_for)}.", "")
    yield from (f"- assumed: {escaped(line)}" for line in own.assumed)
    yield from (f"- note: {escaped(note)}" for note in own.forecast.notes)
