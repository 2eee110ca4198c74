"""Reads files of measured runs into the types of meshwright; rows that cannot be expressed are listed with the reason.

Two formats are read, and the header decides: MLPerf submissions (`round, submitter, system, benchmark, ...`), and
configurations from papers and vendors' tables (`source, section, model, gpu, ...`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshwright.errors import FitError, InputError
from meshwright.evidence import mlperf, published
from meshwright.evidence.measured import MeasuredRun, Runs, Skipped
from meshwright.evidence.table import CellError, Row, Table, read_table

__all__ = ["MeasuredRun", "Runs", "Skipped", "high_confidence_nvidia", "read_runs"]


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file: the columns it must have, and how its rows are named and read."""

    required: Sequence[str]
    name: Callable[[Row], str]
    run: Callable[[Row], MeasuredRun]


FORMATS = (
    Format(mlperf.REQUIRED, mlperf.row_name, mlperf.mlperf_run),
    Format(published.REQUIRED, published.row_name, published.published_run),
)


def read_runs(path: str | os.PathLike[str]) -> Runs:
    """The runs of a CSV file; a cell that cannot be read is an error for the whole file, a row that cannot be expressed is listed."""
    table = read_table(path)
    kind = _format(table)
    rows: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    for row in table.rows:
        try:
            rows.append(kind.run(row))
        except CellError:
            raise
        except (InputError, FitError) as error:
            skipped.append(Skipped(kind.name(row), error.what, row.line))
    return Runs(rows=tuple(rows), skipped=tuple(skipped))


def _format(table: Table) -> Format:
    """The format that has the most columns in common with the header; an error if one of its columns is missing."""
    kind = max(FORMATS, key=lambda kind: len({*kind.required} & {*table.columns}) / len(kind.required))
    table.require(kind.required)
    return kind


def high_confidence_nvidia(runs: Iterable[MeasuredRun]) -> list[MeasuredRun]:
    """The runs on NVIDIA accelerators whose layout and step time are known well enough to fit constants on."""
    return [run for run in runs if run.is_nvidia and run.is_high_confidence and run.is_clean]
