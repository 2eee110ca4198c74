"""Predict measured runs, and say how far off the predictions are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.evidence.measured import MeasuredRun


def validate(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS.csv", help="CSV files of measured runs; default: the package's.", show_default=False),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only these benchmarks or models. May be given several times.", show_default=False),
    ] = None,
    vendor: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only accelerators of these vendors. May be given several times.", show_default=False),
    ] = None,
    confidence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL",
            help="Only rows whose layout is known this well: high, medium. May be given several times.",
            show_default=False,
        ),
    ] = None,
    all_rows: Annotated[
        bool,
        typer.Option("--rows", help="Show every row, not only the ten with the largest error, and every row that cannot be expressed."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Predict every run of a file and report the errors.

    Examples:

      meshwright validate --vendor nvidia --rows

      meshwright validate runs.csv --benchmark llama31_405b --json
    """
    from meshwright.cli.show import show
    from meshwright.evidence.refit import MEASURED_CSV
    from meshwright.evidence.runs import read_runs
    from meshwright.evidence.validate import validate as validated
    from meshwright.say.validation import validation_document

    read = [read_runs(path) for path in files or [MEASURED_CSV]]
    runs = [run for one in read for run in one.rows]
    skipped = [row for one in read for row in one.skipped]
    kept = _only(_only(_only(runs, "benchmark", benchmark), "vendor", vendor), "confidence", confidence)
    show(validation_document(validated(kept), skipped, all_rows=all_rows), as_json=as_json)


def _only(runs: Sequence[MeasuredRun], attribute: str, wanted: Sequence[str] | None) -> list[MeasuredRun]:
    """The runs whose attribute is one of the wanted values, separated by commas. A value that no run has is an error."""
    from meshwright.errors import InputError, nearest

    names = [name.strip() for text in wanted or () for name in text.split(",") if name.strip()]
    known = {getattr(run, attribute).lower() for run in runs}
    for name in names:
        if name.lower() not in known:
            raise InputError(f"no run has {attribute} {name!r}", where=f"--{attribute}", fix=nearest(name, known))
    lowered = {name.lower() for name in names}
    return [run for run in runs if not names or getattr(run, attribute).lower() in lowered]
