"""The document of a validation: predictions next to measured runs, and their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from meshwright.evidence.measured import Runs, Skipped
from meshwright.evidence.validate import Checked, family_name, grouped, summary
from meshwright.say.document import Block, Document, Table
from meshwright.say.forecast import layout_values

NUM_WORST = 10
NUMBERS = ("rows>", "mean error [%]>", "bias [%]>", "worst [%]>", "inside 80 % interval [%]>")


def validation_document(checked: Sequence[Checked], skipped: Sequence[Skipped], *, all_rows: bool = False) -> Document:
    """Errors by row, by benchmark, by accelerator and in all."""
    blocks = tuple(_blocks(checked, skipped, all_rows=all_rows))
    return Document(kind="validation", title="predictions against measured runs", blocks=blocks, values=_values(checked, skipped))


def _blocks(checked: Sequence[Checked], skipped: Sequence[Skipped], *, all_rows: bool) -> Iterator[Block]:
    rows = list(checked) if all_rows else sorted(checked, key=lambda row: -abs(row.error_pct))[:NUM_WORST]
    if rows:
        times = ("measured [s]>", "predicted [s]>", "80 % interval [s]>", "error [%]>")
        columns = ("run", "benchmark", "accelerators", "precision", *times, "evidence")
        title = (
            "every row"
            if all_rows
            else "the row with the largest error"
            if len(rows) == 1
            else f"the {len(rows)} rows with the largest errors"
        )
        yield Table(title, columns, tuple(map(_cells, rows)))
        yield _groups("benchmark", grouped(checked, lambda row: row.run.benchmark))
        yield _groups("accelerator", grouped(checked, lambda row: row.run.accelerator))
    yield Table("all", ("", *NUMBERS), (("predicted", *_numbers(checked)),))
    if skipped:
        yield _skipped_each(skipped) if all_rows else _skipped_by_reason(skipped)


def _skipped_by_reason(skipped: Sequence[Skipped]) -> Table:
    counts = Runs(rows=(), skipped=tuple(skipped)).num_skipped_by_reason()
    reasons = tuple((str(count), reason) for reason, count in counts.items())
    return Table("rows that cannot be expressed (--rows lists each)", ("rows>", "reason"), reasons)


def _skipped_each(skipped: Sequence[Skipped]) -> Table:
    rows = tuple((str(row.source_row), row.name, row.reason) for row in skipped)
    return Table("every row that cannot be expressed", ("line>", "run", "reason"), rows)


def _groups(what: str, groups: Mapping[str, Sequence[Checked]]) -> Table:
    return Table(f"by {what}", (what, *NUMBERS), tuple((name, *_numbers(group)) for name, group in groups.items()))


def _cells(row: Checked) -> tuple[str, ...]:
    run = row.run
    name = f"{run.round} {run.submitter} {run.system}" if run.confidence != "published" else f"{run.round}, line {run.source_row}"
    times = (f"{run.measured_s:.4g}", f"{row.predicted_s:.4g}", f"{row.low_s:.4g} - {row.high_s:.4g}", f"{row.error_pct:+.1f}")
    return name, run.benchmark, f"{run.num_accelerators} {run.accelerator}", run.workload.precision, *times, row.interval.distance


def _numbers(checked: Sequence[Checked]) -> tuple[str, ...]:
    if not checked:
        return "0", "-", "-", "-", "-"
    one = summary(checked)
    return str(one.num_runs), f"{one.mape_pct:.2f}", f"{one.bias_pct:+.2f}", f"{one.worst_pct:+.1f}", f"{one.coverage_pct:.0f}"


def _values(checked: Sequence[Checked], skipped: Sequence[Skipped]) -> dict[str, Any]:
    return {
        "rows": [_row_values(row) for row in checked],
        **asdict(summary(checked)),
        "by_benchmark": _summaries(grouped(checked, lambda row: row.run.benchmark)),
        "by_accelerator": _summaries(grouped(checked, lambda row: row.run.accelerator)),
        "by_family": _summaries(grouped(checked, family_name)),
        "skipped": [{"name": row.name, "row": row.source_row, "why": row.reason} for row in skipped],
    }


def _summaries(groups: Mapping[str, Sequence[Checked]]) -> dict[str, Any]:
    return {name: asdict(summary(rows)) for name, rows in groups.items()}


def _row_values(row: Checked) -> dict[str, Any]:
    run, interval = row.run, row.interval
    return {
        "round": run.round,
        "submitter": run.submitter,
        "system": run.system,
        "benchmark": run.benchmark,
        "accelerator": run.accelerator,
        "num_accelerators": run.num_accelerators,
        "precision": run.workload.precision,
        "confidence": run.confidence,
        "kind": run.kind,
        "layout": layout_values(run.layout),
        "measured_s": run.measured_s,
        "predicted_s": row.predicted_s,
        "low_s": row.low_s,
        "high_s": row.high_s,
        "error_pct": row.error_pct,
        "evidence": {"distance": interval.distance, "compared_with": interval.kin, "num_runs": interval.num_runs, "note": interval.note},
        "software": row.software.note or row.software.release,
        "assumptions": run.assumptions,
    }
