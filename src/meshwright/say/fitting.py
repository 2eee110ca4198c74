"""The documents of a fit of the constants, and of the accuracy page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meshwright.evidence.accuracy import Figure
from meshwright.say.document import Document, Table, Text


def fit_document(constants: Mapping[str, Any], figures: Sequence[Figure], written: Sequence[Path]) -> Document:
    """Fitted constants, as their file has them, and the figures that they reach."""
    rows = tuple(_constant_row(name, one) for name, one in constants["constants"].items())
    title = f"{len(rows)} fitted constants"
    return Document(
        kind="fit",
        title=title,
        blocks=(
            Table(title, ("constant", "value>", "unit", "expected", "bounds", "meaning"), rows),
            Text(f"fitted on {constants['fitted_on']}"),
            figure_table(figures),
            Text(f"written: {', '.join(map(str, written))}"),
        ),
        values={**constants, "num_constants": len(rows), "figures": figure_values(figures), "files": file_values("constants", written)},
    )


def accuracy_document(figures: Sequence[Figure], written: Sequence[Path]) -> Document:
    """The figures of the accuracy page, and where it was written."""
    return Document(
        kind="accuracy",
        title="asked and reached",
        blocks=(figure_table(figures), Text(f"written: {', '.join(map(str, written))}")),
        values={"figures": figure_values(figures), "files": file_values("accuracy page", written)},
    )


def figure_table(figures: Sequence[Figure]) -> Table:
    """Targets and results."""
    rows = tuple((figure.name, figure.asked, figure.reached_words, "" if figure.is_met else "missed") for figure in figures)
    return Table("asked and reached", ("", "asked", "reached>", ""), rows)


def figure_values(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The same for programs; a bound that does not exist is null."""
    return [{**asdict(figure), "is_met": figure.is_met} for figure in figures]


def file_values(what: str, paths: Sequence[Path]) -> list[dict[str, str]]:
    """Files that were written."""
    return [{"what": what, "path": str(path)} for path in paths]


def _constant_row(name: str, one: Mapping[str, Any]) -> tuple[str, ...]:
    expected, bounds = _pair(one["expected"], " +- "), _pair(one["bounds"], " - ")
    return name, f"{one['value']:.4g}", one["unit"], expected, bounds, one["meaning"]


def _pair(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:g}" for value in values)
