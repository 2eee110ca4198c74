"""Predict measured runs, and say how far off the predictions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.evidence.measured import MeasuredRun, Skipped
    from meshwright.evidence.validate import Checked

NUM_WORST = 10
NUMBERS = ("rows>", "mean error [%]>", "bias [%]>", "worst [%]>", "inside 80 % interval [%]>")


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
    all_rows: Annotated[bool, typer.Option("--rows", help="Show every row, not only the ten with the largest error.")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict every run of a file and report the errors.

    Examples:

      meshwright validate --vendor nvidia --rows

      meshwright validate runs.csv --benchmark llama31_405b --json
    """
    from meshwright.cli.show import show_json
    from meshwright.evidence import validate as validation
    from meshwright.evidence.refit import MEASURED_CSV
    from meshwright.evidence.runs import read_runs

    read = [read_runs(path) for path in files or [MEASURED_CSV]]
    runs = [run for one in read for run in one.rows]
    skipped = [row for one in read for row in one.skipped]
    kept = _only(_only(_only(runs, "benchmark", benchmark), "vendor", vendor), "confidence", confidence)
    checked = validation.validate(kept)
    if as_json:
        left = [{"name": row.name, "row": row.source_row, "reason": row.reason} for row in skipped]
        show_json({**validation.as_json(checked), "skipped": left})
    else:
        _show(checked, skipped, all_rows)


def _only(runs: Sequence[MeasuredRun], attribute: str, wanted: Sequence[str] | None) -> list[MeasuredRun]:
    """The runs whose attribute is one of those wanted; commas part several. A name that no run has is an error."""
    from meshwright.errors import InputError, nearest

    names = [name.strip() for text in wanted or () for name in text.split(",") if name.strip()]
    known = {getattr(run, attribute).lower() for run in runs}
    for name in names:
        if name.lower() not in known:
            raise InputError(f"no run has {attribute} {name!r}", where=f"--{attribute}", fix=nearest(name, known))
    lowered = {name.lower() for name in names}
    return [run for run in runs if not names or getattr(run, attribute).lower() in lowered]


def _show(checked: Sequence[Checked], skipped: Sequence[Skipped], all_rows: bool) -> None:
    from meshwright.cli.show import show_table
    from meshwright.evidence.validate import grouped

    rows = list(checked) if all_rows else sorted(checked, key=lambda row: -abs(row.error_pct))[:NUM_WORST]
    if rows:
        times = ("measured [s]>", "predicted [s]>", "80 % interval [s]>", "error [%]>")
        columns = ("run", "benchmark", "accelerators", "precision", *times, "evidence")
        show_table("every row" if all_rows else f"the {len(rows)} rows furthest off", columns, (_cells(row) for row in rows))
        _show_groups("benchmark", grouped(checked, lambda row: row.run.benchmark))
        _show_groups("accelerator", grouped(checked, lambda row: row.run.accelerator))
    show_table("all", ("", *NUMBERS), [("predicted", *_numbers(checked))])
    _show_skipped(skipped)


def _show_groups(what: str, groups: Mapping[str, Sequence[Checked]]) -> None:
    from meshwright.cli.show import show_table

    show_table(f"by {what}", (what, *NUMBERS), ((name, *_numbers(group)) for name, group in groups.items()))


def _cells(row: Checked) -> tuple[object, ...]:
    run = row.run
    name = f"{run.round} {run.submitter} {run.system}" if run.confidence != "published" else f"{run.round}, line {run.source_row}"
    times = (f"{run.measured_s:.4g}", f"{row.predicted_s:.4g}", f"{row.low_s:.4g} - {row.high_s:.4g}", f"{row.error_pct:+.1f}")
    return name, run.benchmark, f"{run.num_accelerators} {run.accelerator}", run.workload.precision, *times, row.interval.distance


def _numbers(checked: Sequence[Checked]) -> tuple[object, ...]:
    from meshwright.evidence.validate import summary

    one = summary(checked)
    return one.num_runs, f"{one.mape_pct:.2f}", f"{one.bias_pct:+.2f}", f"{one.worst_pct:+.1f}", f"{one.coverage_pct:.0f}"


def _show_skipped(skipped: Sequence[Skipped]) -> None:
    from meshwright.cli.show import show_table
    from meshwright.evidence.measured import Runs

    counts = Runs(rows=(), skipped=tuple(skipped)).num_skipped_by_reason()
    if counts:
        show_table("rows that cannot be expressed", ("rows>", "reason"), ((count, reason) for reason, count in counts.items()))
