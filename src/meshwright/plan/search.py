"""Every legal layout priced, the best kept: Model x Cluster x Workload -> ranked layouts.

The closed form prices columns; the best few hundred are then re-priced from the exact pipeline schedule. Four rules drop layouts
unpriced, and none can drop the best (`tests/plan/test_search.py` compares with the search that prices everything):
- a layout that does not fit is not priced in time (it is counted, and the nearest miss remembered);
- recomputing more never shortens a step, so it is tried only where recomputing less does not fit;
- sharding more than the optimizer never shortens a step, so ZeRO 2 and 3 are tried only where ZeRO 1 does not fit;
- communication and the bubble only add to a step, so degrees whose bare compute is slower than the slowest layout kept are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import FitError, InputError
from meshwright.footprint import RESERVE_BYTES, Footprint, footprint, recipe_for
from meshwright.layout import RECOMPUTE, Layout, Layouts
from meshwright.plan.candidates import Fixed, bare, batches, concatenated, degrees
from meshwright.plan.features import Features
from meshwright.predict import exact_step_s, predict
from meshwright.question import GENERATION, Question, question
from meshwright.software import Software, software
from meshwright.step import price
from meshwright.units import gib

EXACT = 500  # of the best in closed form, priced again from the exact schedule
Progress = Callable[[int, int], None]  # rows of degrees done, and in all


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: layouts from the best on, with their step times."""

    layouts: tuple[Layout, ...]
    step_time_s: tuple[float, ...]  # from the exact schedule
    num_layouts: int  # fully priced
    num_pruned: int  # legal, dropped unpriced because a lesser choice fits
    num_bounded: int  # rows of degrees left because their bare compute is too slow already
    num_unfit: int  # legal, but too large for the memory
    search_s: float


@dataclass(slots=True)
class _Tally:
    num_layouts: int = 0
    num_pruned: int = 0
    num_unfit: int = 0
    num_skipped_rows: int = 0
    nearest_bytes: float = np.inf  # memory the nearest miss lacks
    nearest: Layout | None = None


def search(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    stack: Software | None = None,
    features: Features | None = None,
    fixed: Fixed | None = None,
    keep: int = 5,
    reserve_bytes: float = RESERVE_BYTES,
    prune: bool = True,
    progress: Progress = lambda done, total: None,
) -> Found:
    """The fastest layouts that fit, from the best on."""
    started = time.perf_counter()
    stack, features, fixed = stack or software(), features or Features(), fixed or Fixed({})
    factor = stack.log_factor_of(workload.adapters is not None, GENERATION.get(cluster.accelerator.architecture, "hopper"))
    asked = question(model, cluster, workload, factor)
    rows, tally = degrees(model, cluster, workload, features, fixed), _Tally()
    if not rows:
        raise _no_degrees(model, cluster, workload, fixed)
    bound_s = _bounds_s(asked, rows, features, stack)
    order = np.argsort(bound_s, kind="stable")
    rows, bound_s = [rows[i] for i in order], bound_s[order]
    room_bytes = cluster.accelerator.memory_bytes - reserve_bytes
    recipe = recipe_for(workload.precision, cluster.accelerator)

    def memory(layouts: Layouts) -> Footprint:
        return footprint(model, workload, layouts, recipe)

    best, best_s = list[Layouts](), list[NDArray[np.float64]]()
    plain = _first_choices(features) if prune else features
    count = max(keep, EXACT)
    for batch, done in batches(rows, cluster, plain, fixed):
        if prune and best_s and len(best_s[0]) >= count and bound_s[done] > best_s[0].max():
            tally.num_skipped_rows = len(rows) - done
            break
        fitting = _fitting(batch, memory, room_bytes, features, fixed, tally) if prune else _all_fitting(batch, memory, room_bytes, tally)
        if len(fitting):
            _keep_best(asked, fitting, stack, best, best_s, count)
            tally.num_layouts += len(fitting)
        progress(done, len(rows))
    progress(len(rows), len(rows))
    if not best:
        raise _nothing_fits(cluster, tally)
    ranked, seconds = _exact(model, cluster, workload, stack, concatenated(best), np.concatenate(best_s), keep)
    return Found(
        layouts=ranked,
        step_time_s=seconds,
        num_layouts=tally.num_layouts,
        num_pruned=tally.num_pruned,
        num_bounded=tally.num_skipped_rows,
        num_unfit=tally.num_unfit,
        search_s=time.perf_counter() - started,
    )


def _bounds_s(asked: Question, rows: Sequence[tuple[int, ...]], features: Features, stack: Software) -> NDArray[np.float64]:
    """Seconds below which no layout of a row of degrees can come: its busiest stage on a network that takes no time."""
    free = replace(asked, tier_bytes_per_s=np.full_like(asked.tier_bytes_per_s, np.inf), tier_latency_s=np.zeros_like(asked.tier_latency_s))
    seconds = price(free, bare(rows, features), replace(stack.constants, round_s=0.0)).seconds
    return np.asarray(seconds["compute"] + seconds["optimizer"] + seconds["overhead"])


# -- what fits ------------------------------------------------------------------------------------------


def _first_choices(features: Features) -> Features:
    """The features with only the cheapest recompute and the ZeRO stages up to 1 (or the lowest there is)."""
    stages = tuple(stage for stage in features.zero_stages if stage <= 1) or (min(features.zero_stages),)
    least = min(features.recompute, key=RECOMPUTE.index)
    return replace(features, zero_stages=stages, recompute=(least,))


def _all_fitting(batch: Layouts, memory: Callable[[Layouts], Footprint], room_bytes: float, tally: _Tally) -> Layouts:
    """The rows that fit, every choice tried."""
    return batch.take(_fits(batch, memory(batch), room_bytes, tally))


def _fitting(
    batch: Layouts, memory: Callable[[Layouts], Footprint], room_bytes: float, features: Features, fixed: Fixed, tally: _Tally
) -> Layouts:
    """The rows that fit, and for those that do not, the least sharding and recomputing that makes them."""
    sharing = batch.dp * batch.cp > 1
    harder = [
        (stage, RECOMPUTE.index(kind))
        for kind in features.recompute
        if fixed.allows("recompute", kind)
        for stage in sorted(features.zero_stages)
        if stage >= 1 and fixed.allows("zero_stage", stage)
    ]
    fits = _fits(batch, memory(batch), room_bytes, tally)
    kept = [batch.take(fits)]
    tally.num_pruned += int(fits.sum()) * max(len(harder) - 1, 0)
    # ZeRO 0 that does not fit is covered by the row of ZeRO 1 beside it, where that stage is open.
    has_one = any(stage == 1 for stage, _ in harder)
    left = batch.take(~fits & (sharing | ~has_one) & ((batch.zero_stage > 0) | (not has_one)))
    alone = batch.take(~fits & ~sharing & has_one)
    for rows in (left, alone):
        if len(rows):
            kept += _escalated(rows, harder, memory, room_bytes, tally)
    return concatenated(kept)


def _escalated(
    rows: Layouts, harder: Sequence[tuple[int, int]], memory: Callable[[Layouts], Footprint], room_bytes: float, tally: _Tally
) -> list[Layouts]:
    """For every row, the choices that fit where no lesser choice does."""
    kept: list[Layouts] = []
    fitted: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for stage, kind in harder:
        lesser = np.zeros(len(rows), dtype=bool)
        for (other_stage, other_kind), ok in fitted.items():
            if other_stage <= stage and other_kind <= kind:
                lesser |= ok
        tried = _with(rows, zero_stage=stage, recompute=kind)
        ok = np.zeros(len(rows), dtype=bool)
        open_rows = np.flatnonzero(~lesser)
        if len(open_rows):
            part = tried.take(open_rows)
            good = _fits(part, memory(part), room_bytes, tally)
            ok[open_rows[good]] = True
            kept.append(part.take(good))
        tally.num_pruned += int(lesser.sum())
        fitted[(stage, kind)] = ok | lesser
    return kept


def _with(rows: Layouts, **values: int) -> Layouts:
    columns = {f.name: getattr(rows, f.name) for f in fields(Layouts)}
    return Layouts(**{**columns, **{key: np.full(len(rows), value, dtype=np.int64) for key, value in values.items()}})


def _fits(layouts: Layouts, priced: Footprint, room_bytes: float, tally: _Tally) -> NDArray[np.bool_]:
    """Which rows are legal and fit; the nearest of the others is remembered."""
    peak = np.where(priced.legal, priced.peak_bytes, np.inf)
    fits = peak <= room_bytes
    missed = peak[~fits]
    tally.num_unfit += int(np.isfinite(missed).sum())
    if missed.size:
        nearest = int(np.argmin(np.where(fits, np.inf, peak)))
        if peak[nearest] - room_bytes < tally.nearest_bytes:
            tally.nearest_bytes, tally.nearest = float(peak[nearest] - room_bytes), layouts.row(nearest)
    return np.asarray(fits)


# -- what is fast ---------------------------------------------------------------------------------------


def _keep_best(
    asked: Question, layouts: Layouts, stack: Software, best: list[Layouts], best_s: list[NDArray[np.float64]], count: int
) -> None:
    """Price the rows and keep the best `count` of all so far, in place."""
    step_s = price(asked, layouts, stack.constants).step_time_s
    limit = best_s[0].max() if best_s and len(best_s[0]) >= count else np.inf
    fast = np.flatnonzero(step_s < limit)
    if not len(fast):
        return
    rows, seconds = concatenated([*best, layouts.take(fast)]), np.concatenate([*best_s, step_s[fast]])
    order = np.argsort(seconds, kind="stable")[:count]
    best[:], best_s[:] = [rows.take(order)], [seconds[order]]


def _exact(
    model: Model, cluster: Cluster, workload: Workload, stack: Software, layouts: Layouts, step_s: NDArray[np.float64], keep: int
) -> tuple[tuple[Layout, ...], tuple[float, ...]]:
    """The best rows priced from the exact schedule, from the best on.

    Only rows that could still be among the best are timed: the closed form is within a few percent of the exact time.
    """
    order = np.argsort(step_s, kind="stable")
    exact: list[tuple[float, int]] = []
    for rank, index in enumerate(order[:EXACT]):
        if len(exact) >= keep and step_s[index] > 1.03 * sorted(exact)[keep - 1][0]:
            break
        layout = layouts.row(int(index))
        seconds = (
            exact_step_s(predict(model, cluster, workload, Layouts.of([layout]), stack), layout) if layout.pp > 1 else float(step_s[index])
        )
        exact.append((seconds, rank))
    exact.sort()
    chosen = [layouts.row(int(order[rank])) for _, rank in exact[:keep]]
    return tuple(chosen), tuple(seconds for seconds, _ in exact[:keep])


# -- nothing --------------------------------------------------------------------------------------------


def _no_degrees(model: Model, cluster: Cluster, workload: Workload, fixed: Fixed) -> InputError:
    said = ", ".join(f"{key}={value}" for key, value in fixed.values.items())
    return InputError(
        f"no degrees multiply to {cluster.num_accelerators} accelerators and divide {model.name} and a batch of {workload.global_batch}"
        + (f" with {said}" if said else ""),
        where="plan",
        fix="free a fixed degree, or choose a number of accelerators and a batch with common divisors (powers of two times the nodes)",
    )


def _nothing_fits(cluster: Cluster, tally: _Tally) -> FitError:
    what = f"no layout fits {gib(cluster.accelerator.memory_bytes)} of {cluster.accelerator.name}: {tally.num_unfit:,} were tried"
    near = (
        f"; the nearest miss, {tally.nearest}, lacks {gib(tally.nearest_bytes)} ({tally.nearest_bytes:,.0f} bytes)" if tally.nearest else ""
    )
    return FitError(
        what + near, where="plan", fix="use more accelerators, a smaller batch or sequence, a lower precision, or open recompute and ZeRO 3"
    )
