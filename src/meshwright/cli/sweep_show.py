"""How the answer of `meshwright sweep` is shown: as a table for people, as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meshwright.cli.plan_show import plan_json, show_layouts
from meshwright.cli.show import show_json, show_table, show_text
from meshwright.describe.cluster import beyond_note
from meshwright.errors import InputError
from meshwright.plan.sizes import Ask
from meshwright.plan.sweep import RUN_TO_RUN, Point, Sweep
from meshwright.units import seconds, usd

COLUMNS = ("accelerators>", "batch>", "step>", "80 % interval", "tokens/s each>", "efficiency>", "80 % interval", "cost>", "degrees")
WORDS = {"weak": "weak scaling: the batch grows with the machine", "strong": "strong scaling: the batch stays"}


def read_sizes(text: str, sets: Iterable[str] = ()) -> list[int]:
    """The numbers in `512,1024`, which nothing else may set."""
    if any(one.partition("=")[0].strip() == "gpus" for one in sets):
        raise InputError("the number of accelerators is given twice", where="--set gpus", fix="name the sizes in --gpus alone")
    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"cannot read numbers of accelerators in {text!r}", where="--gpus", fix="write --gpus 512,1024,2048")
    return sizes


def show_as_json(ask: Ask, found: Sweep) -> None:
    """Print every size under the names that later tools use."""
    show_json(
        {
            "mode": found.mode,
            "points": [_point_json(point) for point in found.points],
            "misses": [{"num_accelerators": size, "why": error.what, "fix": error.fix} for size, error in found.misses],
            "run_to_run": RUN_TO_RUN,
            "sentences": found.sentences,
            "notes": found.notes,
            "model": ask.model.name,
            "cluster": ask.cluster.name,
            "workload": ask.workload.name,
            "software": ask.stack.name,
        }
    )


def _point_json(point: Point) -> dict[str, Any]:
    return {
        "num_accelerators": point.num_accelerators,
        "global_batch": point.global_batch,
        "efficiency": point.efficiency,
        "efficiency_low": point.efficiency_low,
        "efficiency_high": point.efficiency_high,
        "tokens_per_s_per_gpu": point.tokens_per_s_each,
        **plan_json(point.best),
        "notes": point.best.plan.notes,
    }


def show_tables(ask: Ask, found: Sweep) -> None:
    """Print a line per size, and what the differences can say."""
    title = f"{ask.model.name} on {ask.cluster.name}, {ask.workload.name}; {WORDS[found.mode]}"
    show_table(title, COLUMNS, _rows(found))
    show_layouts((point.num_accelerators, point.best.plan.layout) for point in found.points)
    for sentence in found.sentences:
        show_text(sentence)
    for note in found.notes:
        show_text(f"note: {note}")
    for size, error in found.misses:
        show_text(f"{size:,} accelerators: {error.what}{f' ({error.fix})' if error.fix else ''}")
    for note in filter(None, (_beyond(ask, point) for point in found.points)):
        show_text(f"note: {note}")


def _beyond(ask: Ask, point: Point) -> str:
    """What to say of a size that is larger than the machine described."""
    return beyond_note(ask.described or ask.cluster, point.best.plan.cluster)


def _rows(found: Sweep) -> Iterator[tuple[str, ...]]:
    for point in found.points:
        plan, offer = point.best.plan, point.best.outcome.offer
        first = point is found.points[0]
        yield (
            f"{point.num_accelerators:,}",
            f"{point.global_batch:,}",
            seconds(plan.step_time_s),
            f"{seconds(plan.low_s)} to {seconds(plan.high_s)}",
            f"{point.tokens_per_s_each:,.0f}",
            f"{100 * point.efficiency:.1f} %",
            "reference" if first else f"{100 * point.efficiency_low:.0f} to {100 * point.efficiency_high:.0f} %",
            f"{point.best.outcome.bound}{usd(offer.cost_usd.value)}" if offer else "unknown",
            plan.layout.degrees,
        )
