"""The document of a sweep: a row for each size, and what the differences between sizes can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meshwright.plan.noise import run_noise
from meshwright.plan.stack import runs_on
from meshwright.plan.sweep import Point, Sweep
from meshwright.say.document import Block, Document, Note, Table, Text
from meshwright.say.forecast import forecast_values
from meshwright.say.plan import whole_layouts
from meshwright.units import seconds, usd

COLUMNS = (
    "accelerators>",
    "batch>",
    "step>",
    "80 % interval",
    "tokens/s each>",
    "efficiency>",
    "80 % interval",
    "cost>",
    "degrees",
    "runs on",
)
MODES = {"weak": "weak scaling: the batch grows with the machine", "strong": "strong scaling: the batch stays"}


def sweep_document(found: Sweep) -> Document:
    """The whole sweep."""
    title = f"{found.ask.job.name}, {found.ask.job.workload.name}; {MODES[found.mode]}"
    return Document(kind="sweep", title=title, blocks=tuple(_blocks(found, title)), values=_values(found))


def _blocks(found: Sweep, title: str) -> Iterator[Block]:
    yield Table(title, COLUMNS, tuple(_row(point, is_first=point is found.points[0]) for point in found.points))
    yield whole_layouts(point.best for point in found.points)
    yield from map(Text, found.sentences)
    yield from map(Note, found.notes)
    for size, error in found.misses:
        yield Text(f"{size:,} accelerators: {error.what}{f' ({error.fix})' if error.fix else ''}")


def _row(point: Point, *, is_first: bool) -> tuple[str, ...]:
    plan = point.best
    return (
        f"{point.num_accelerators:,}",
        f"{point.global_batch:,}",
        seconds(plan.step_s),
        f"{seconds(plan.interval.low_s)} to {seconds(plan.interval.high_s)}",
        f"{plan.tokens_per_s_per_gpu:,.0f}",
        f"{100 * point.efficiency:.1f} %",
        "reference" if is_first else f"{100 * point.efficiency_low:.0f} to {100 * point.efficiency_high:.0f} %",
        plan.outcome.words(plan.cost, usd) if plan.cost else "unknown",
        plan.layout.degrees,
        ", ".join(runs_on(plan.job, plan.layout)) or "none known",
    )


def _values(found: Sweep) -> dict[str, Any]:
    job = found.ask.job
    return {
        "mode": found.mode,
        "points": [_point_values(point) for point in found.points],
        "misses": [{"num_accelerators": size, "why": error.what, "fix": error.fix} for size, error in found.misses],
        "run_to_run": run_noise(),
        "sentences": found.sentences,
        "notes": found.notes,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "workload": job.workload.name,
        "stack": found.ask.stack.name,
        "software": job.software.name,
    }


def _point_values(point: Point) -> dict[str, Any]:
    return {
        **forecast_values(point.best),
        "efficiency": point.efficiency,
        "efficiency_low": point.efficiency_low,
        "efficiency_high": point.efficiency_high,
    }
