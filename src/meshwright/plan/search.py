"""Every legal layout priced, the best kept: Model x Cluster x Workload -> ranked layouts.

The closed form prices columns; the best few hundred are then re-priced from the exact pipeline schedule. Four rules drop layouts
unpriced, and none can drop the best (`tests/plan/test_search.py` compares with the search that prices everything):
- a layout that does not fit is not priced in time (it is counted, and the nearest miss remembered);
- recomputing more never shortens a step, so it is tried only where recomputing less does not fit;
- sharding more than the optimizer never shortens a pipelined step of several micro-batches, so ZeRO 2 and 3 are tried there only where
  ZeRO 1 does not fit;
- communication only adds to a step, so degrees are left whose step is slower than the slowest layout kept even on a network that takes
  no time, but for tensor parallelism over the fastest link there is.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright import software as sw
from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import FitError, InputError
from meshwright.footprint import RESERVE_BYTES, Footprint, footprint, recipe_for
from meshwright.layout import RECOMPUTE, Layout, Layouts
from meshwright.plan.candidates import DEGREES, Fixed, Row, Space, concatenated, degrees
from meshwright.plan.features import Features
from meshwright.predict import Prediction, exact_step_s, predict, schedule_excess_s, usual_layout
from meshwright.question import GENERATION, Question, question
from meshwright.software import Software, software
from meshwright.step import price
from meshwright.units import gib

EXACT = 500  # of the best in closed form, priced again from the exact schedule
# The closed form adds up chains of operations that wait for each other, so the exact schedule never takes less (but for rounding, and by
# what tests/plan/test_search.py has seen): layouts that are behind in closed form stay behind.
CLOSED_EXCESS = 1.001
LONG = 4  # rounds of the pipeline after which a step grows evenly
Progress = Callable[[int, int], None]  # rows of degrees done, and in all
Column = NDArray[np.float64]
Score = Callable[[Prediction], Column]  # of every row: what makes one better than another, if not its time
Choice = tuple[int, int]  # ZeRO stage, index into RECOMPUTE


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: layouts from the best on, with their step times.

    Every legal layout is counted once: priced, pruned or unfit.
    """

    layouts: tuple[Layout, ...]
    step_time_s: tuple[float, ...]  # from the exact schedule
    num_layouts: int  # legal, fitting, fully priced
    num_pruned: int  # legal, dropped unpriced: a lesser choice fits, or the degrees' bound is too slow already
    num_unfit: int  # legal, but too large for the memory
    search_s: float


@dataclass(slots=True)
class _Tally:
    num_layouts: int = 0
    num_pruned: int = 0
    num_unfit: int = 0
    nearest_bytes: float = np.inf  # memory the nearest miss lacks
    nearest: Layout | None = None


def usual_features(model: Model, cluster: Cluster, workload: Workload) -> Features:
    """Every choice open, and the switches as stacks of this kind of chip and precision have them."""
    usual = usual_layout(model, cluster, workload)
    return Features(overlap_tp=usual.overlap_tp, cuda_graphs=usual.cuda_graphs)


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
    score: Score | None = None,
    progress: Progress = lambda done, total: None,
) -> Found:
    """The fastest layouts that fit, from the best on; with a `score`, those of the fastest that have the lowest.

    Of layouts that differ only in their ZeRO stage and recompute the best one stands for all.
    """
    started = time.perf_counter()
    stack, fixed = stack or software(), fixed or Fixed()
    features = fixed.narrowed(features or usual_features(model, cluster, workload))
    asked = _asked(model, cluster, workload, stack)
    space, bound_s = _bounded_space(model, cluster, workload, stack, features, fixed, asked)
    memory = _Memory(model, cluster, workload, reserve_bytes)
    best, tally = _Best(asked, stack, max(keep, EXACT)), _Tally()
    lesser = min(features.recompute, key=RECOMPUTE.index)
    opened = space.batches((min(features.zero_stages),), (lesser,)) if prune else space.batches(features.zero_stages, features.recompute)
    for batch, done in opened:
        if prune and bound_s[done] > best.limit_s:
            tally.num_pruned += space.num_layouts(done)
            break
        fitting = memory.least(batch, features, tally) if prune else batch.take(memory.fits(batch, tally))
        best.add(fitting)
        tally.num_layouts += len(fitting)
        progress(done, len(space.rows))
    progress(len(space.rows), len(space.rows))
    if not tally.num_layouts:
        raise _nothing_fits(cluster, tally)
    ranked, seconds = _exact(predict(model, cluster, workload, best.layouts, stack), best, keep, score)
    return Found(
        layouts=ranked,
        step_time_s=seconds,
        num_layouts=tally.num_layouts,
        num_pruned=tally.num_pruned,
        num_unfit=tally.num_unfit,
        search_s=time.perf_counter() - started,
    )


def fastest_bound_s(model: Model, cluster: Cluster, workload: Workload, stack: Software, features: Features | None, fixed: Fixed) -> float:
    """Seconds below which no layout on this machine can come; inf where no degrees divide it."""
    features = fixed.narrowed(features or usual_features(model, cluster, workload))
    try:
        _, bound_s = _bounded_space(model, cluster, workload, stack, features, fixed, _asked(model, cluster, workload, stack))
    except InputError:
        return float(np.inf)
    return float(bound_s[0])


def _asked(model: Model, cluster: Cluster, workload: Workload, stack: Software) -> Question:
    factor = stack.log_factor_of(workload.adapters is not None, GENERATION.get(cluster.accelerator.architecture, "hopper"))
    return question(model, cluster, workload, factor)


# -- bounds ---------------------------------------------------------------------------------------------


def _bounded_space(
    model: Model, cluster: Cluster, workload: Workload, stack: Software, features: Features, fixed: Fixed, asked: Question
) -> tuple[Space, Column]:
    """All that may be searched, the degrees with the lowest bound first, and those bounds in seconds."""
    rows = degrees(model, cluster, workload, features, fixed)
    if not rows:
        raise _no_degrees(model, cluster, workload, features, fixed)
    space = Space.of(model, cluster, rows, features, fixed)
    bound_s = _bounds_s(asked, space, stack)
    order = np.argsort(bound_s, kind="stable")
    return space.sorted(order), bound_s[order]


def _bounds_s(asked: Question, space: Space, stack: Software) -> Column:
    """Seconds below which no layout of a row of degrees can come.

    Its step under the kindest schedule on a network that takes no time, but for tensor parallelism: that has a domain to itself, whose
    links are the fastest of the machine.
    """
    constants = stack.constants
    hashed = np.where(asked.tier_is_hashed > 0, constants.hashed_efficiency, 1.0) * constants.fabric_efficiency
    reached = asked.tier_bytes_per_s * np.where(asked.tier_is_scale_up > 0, sw.SCALE_UP_EFFICIENCY, hashed)
    free = np.full_like(asked.tier_bytes_per_s, np.inf)
    free[0] = reached.max() / sw.SCALE_UP_EFFICIENCY
    tp = np.array([row[0] for row in space.rows], dtype=np.float64)
    kind_network = replace(
        asked,
        tier_size=np.concatenate([tp[None], np.repeat(asked.tier_size[1:], len(tp), axis=1)]),
        tier_bytes_per_s=free,
        tier_latency_s=np.zeros_like(free),
        tier_is_scale_up=np.ones_like(free),
        tier_is_hashed=np.zeros_like(free),
    )
    kinds = {"zero-bubble"} & set(space.features.schedules) | {"1f1b" for name in space.features.schedules if name != "zero-bubble"}
    silent = replace(constants, round_s=0.0)
    steps = [price(kind_network, space.bare(kind), silent) for kind in sorted(kinds)]
    # Replicas exchange nothing: experts that are shared out over tensor ranks would, and differently in every ZeRO stage.
    return np.asarray(np.min([step.step_time_s - step.seconds["exposed_dp"] for step in steps], axis=0))


# -- what fits ------------------------------------------------------------------------------------------


class _Memory:
    """What there is, and which layouts need no more."""

    def __init__(self, model: Model, cluster: Cluster, workload: Workload, reserve_bytes: float) -> None:
        self.room_bytes = cluster.accelerator.memory_bytes - reserve_bytes
        self._job = model, workload
        self._recipe = recipe_for(workload.precision, cluster.accelerator)

    def footprint(self, layouts: Layouts) -> Footprint:
        """Bytes of every layout."""
        return footprint(*self._job, layouts, self._recipe)

    def fits(self, layouts: Layouts, tally: _Tally) -> NDArray[np.bool_]:
        """Which rows are legal and fit; the nearest of the others is remembered."""
        priced = self.footprint(layouts)
        peak = np.where(priced.legal, priced.peak_bytes, np.inf)
        fits = peak <= self.room_bytes
        missed = np.flatnonzero(~fits & np.isfinite(peak))
        tally.num_unfit += len(missed)
        if len(missed):
            nearest = int(missed[np.argmin(peak[missed])])
            if peak[nearest] - self.room_bytes < tally.nearest_bytes:
                tally.nearest_bytes, tally.nearest = float(peak[nearest] - self.room_bytes), layouts.row(nearest)
        return np.asarray(fits)

    def least(self, batch: Layouts, features: Features, tally: _Tally) -> Layouts:
        """Every row with each (ZeRO stage, recompute) that fits where none that is never slower does."""
        kinds = sorted(RECOMPUTE.index(name) for name in features.recompute)
        sharing = batch.dp * batch.cp > 1
        num_micro_batches = self._job[1].global_batch // (batch.dp * batch.micro_batch)
        comparable = (batch.pp > 1) & (num_micro_batches > 1)
        kept: list[Layouts] = []
        fitted: dict[Choice, NDArray[np.bool_]] = {}
        for stage in sorted(features.zero_stages):
            # Without replicas all stages are one and the same.
            legal = sharing if stage > min(features.zero_stages) else np.ones(len(batch), dtype=bool)
            for kind in kinds:
                lesser = legal & _covered(fitted, (stage, kind), comparable)
                tally.num_pruned += int(lesser.sum())
                tried = np.flatnonzero(legal & ~lesser)
                rows = _with(batch.take(tried), zero_stage=stage, recompute=kind)
                good = self.fits(rows, tally)
                fitted[(stage, kind)] = lesser.copy()
                fitted[(stage, kind)][tried[good]] = True
                kept.append(rows.take(good))
        return concatenated(kept)


def _covered(fitted: dict[Choice, NDArray[np.bool_]], choice: Choice, comparable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows in which a choice that is never slower fits: recompute no more, and the same ZeRO stage or, where they compare, a lower one.

    Replicated (stage 0) and sharded optimizers do not compare. Nor do higher stages where a step has one micro-batch or no pipeline:
    they reduce no more often there, and are priced as hiding gradients behind all layers, where stage 1 leaves a chunk or layer open.
    """
    stage, kind = choice
    covered = np.zeros(len(comparable), dtype=bool)
    for (other_stage, other_kind), ok in fitted.items():
        if other_kind <= kind and other_stage == stage:
            covered |= ok
        elif other_kind <= kind and 1 <= other_stage < stage:
            covered |= ok & comparable
    return covered


def _with(rows: Layouts, **values: int) -> Layouts:
    columns = {f.name: getattr(rows, f.name) for f in fields(Layouts)}
    return Layouts(**{**columns, **{key: np.full(len(rows), value, dtype=np.int64) for key, value in values.items()}})


# -- what is fast ---------------------------------------------------------------------------------------


class _Best:
    """The fastest layouts so far, in closed form."""

    def __init__(self, asked: Question, stack: Software, count: int) -> None:
        self._asked, self._stack, self._count = asked, stack, count
        self.layouts: Layouts = Layouts.of([])
        self.step_s: Column = np.empty(0)

    @property
    def limit_s(self) -> float:
        """Seconds of the slowest that is kept; anything is kept while there is room."""
        return float(self.step_s[-1]) if len(self.step_s) >= self._count else float(np.inf)

    def add(self, layouts: Layouts) -> None:
        """Price the rows and keep the best of all so far."""
        if not len(layouts):
            return
        step_s = price(self._asked, layouts, self._stack.constants).step_time_s
        fast = np.flatnonzero(step_s < self.limit_s)
        if len(fast):
            rows, seconds = concatenated([self.layouts, layouts.take(fast)]), np.concatenate([self.step_s, step_s[fast]])
            order = np.argsort(seconds, kind="stable")[: self._count]
            self.layouts, self.step_s = rows.take(order), seconds[order]


def _exact(prediction: Prediction, best: _Best, keep: int, score: Score | None) -> tuple[tuple[Layout, ...], tuple[float, ...]]:
    """The best rows priced from the exact schedule, from the best on."""
    layouts = _distinct(best.layouts)
    if score is None:
        rows = _fastest(prediction, layouts, best.step_s, keep)
    else:
        scores = score(prediction)
        rows = sorted(layouts, key=lambda row: (float(scores[row]), row))[:keep]
    timed = [(exact_step_s(prediction, layouts[row], row) if layouts[row].pp > 1 else float(best.step_s[row]), row) for row in rows]
    chosen = sorted(timed) if score is None else timed
    return tuple(layouts[row] for _, row in chosen), tuple(seconds for seconds, _ in chosen)


def _distinct(rows: Layouts) -> dict[int, Layout]:
    """By row, the layouts that differ in more than how much they shard and recompute: of those that do not, the first."""
    seen: set[Layout] = set()
    found: dict[int, Layout] = {}
    for row in range(len(rows)):
        layout = rows.row(row)
        alike = replace(layout, zero_stage=1, recompute="none")
        if alike not in seen:
            seen.add(alike)
            found[row] = layout
    return found


def _fastest(prediction: Prediction, layouts: Mapping[int, Layout], step_s: Column, keep: int) -> list[int]:
    """Rows of the fastest by the exact schedule; those that are too slow in closed form already are left."""
    timed: list[tuple[float, int]] = []
    for row, layout in layouts.items():
        closed_s = float(step_s[row])
        if len(timed) >= keep and closed_s > CLOSED_EXCESS * timed[keep - 1][0]:
            break
        bisect.insort(timed, (closed_s + _excess_s(prediction, layout, row), row))
    return [row for _, row in timed[:keep]]


def _excess_s(prediction: Prediction, layout: Layout, row: int) -> float:
    """Seconds the exact schedule takes beyond the closed form.

    After a few rounds of the pipeline every further one adds the same, so a long step is timed by two short ones and a straight line.
    """
    pp, m = layout.pp, int(prediction.detail.num_micro_batches[row])
    if pp == 1:
        return 0.0
    if m % pp or m <= LONG * pp:
        return schedule_excess_s(prediction, layout, row)
    before_s, after_s = (schedule_excess_s(prediction, layout, row, rounds * pp) for rounds in (LONG - 1, LONG))
    return after_s + (m // pp - LONG) * (after_s - before_s)


# -- nothing --------------------------------------------------------------------------------------------


def _no_degrees(model: Model, cluster: Cluster, workload: Workload, features: Features, fixed: Fixed) -> InputError:
    """The complaint that nothing divides, with what would, were one of the fixed degrees free."""
    said = ", ".join(f"{key}={value}" for key, value in fixed.values.items() if key in DEGREES)
    fix = "choose a number of accelerators and a batch with common divisors (powers of two times the nodes)"
    for key in (key for key in fixed.values if key in DEGREES):
        others = Fixed({name: value for name, value in fixed.values.items() if name != key})
        rows: list[Row] = degrees(model, cluster, workload, features, others)
        if rows:
            able = sorted({row[DEGREES.index(key)] for row in rows})
            fix = f"with the rest as it is, choose {key} from {', '.join(map(str, able))}"
            break
    return InputError(
        f"no degrees multiply to {cluster.num_accelerators:,} accelerators and divide {model.name}, "
        f"a sequence of {workload.seq_len:,} and a batch of {workload.global_batch:,}" + (f" with {said}" if said else ""),
        where="plan",
        fix=fix,
    )


def _nothing_fits(cluster: Cluster, tally: _Tally) -> FitError:
    what = f"no layout fits {gib(cluster.accelerator.memory_bytes)} of {cluster.accelerator.name}: {tally.num_unfit:,} were tried"
    near = (
        f"; the nearest miss, {tally.nearest}, lacks {gib(tally.nearest_bytes)} ({tally.nearest_bytes:,.0f} bytes)" if tally.nearest else ""
    )
    return FitError(
        what + near, where="plan", fix="use more accelerators, a smaller batch or sequence, a lower precision, or open recompute and ZeRO 3"
    )
