"""Every legal layout priced, the best kept: Job -> ranked layouts.

The closed form prices columns; the best few hundred are then re-priced from the exact pipeline schedule. Four rules drop layouts
unpriced, and none can drop the best (`tests/plan/test_search.py` compares with the search that prices everything):
- a layout that does not fit is not priced in time (it is counted, and the nearest miss remembered);
- recomputing more never shortens a step, so it is tried only where recomputing less does not fit;
- sharding more than the optimizer never shortens a pipelined step of several micro-batches, so ZeRO 2 and 3 are tried there only where
  ZeRO 1 does not fit;
- communication only adds to a step, so degrees are left whose step is slower than the slowest layout kept even on a network that takes
  no time, but for tensor parallelism over the fastest link there is.
What is made small is a `Measure`; the rules hold for all of them, since each grows with the step and with the work in it.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.arguments import check_type, typed
from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import FitError, InputError, MeshwrightError
from meshwright.job import Job
from meshwright.layout import RECOMPUTE, SHORT_NAMES, Layout, Layouts, value_text
from meshwright.plan.candidates import DEGREES, Fixed, Row, Space, concatenated, degrees, fixed_by
from meshwright.plan.features import Features
from meshwright.plan.measure import STEP, Measure, Times
from meshwright.predict import software as sw
from meshwright.predict.exact import quick_excess_s, step_excess_s
from meshwright.predict.footprint import RESERVE_BYTES, Footprint, footprint, recipe_for, reserve_for
from meshwright.predict.forecast import Forecast, forecast
from meshwright.predict.inputs import inputs_of
from meshwright.predict.measured import measured
from meshwright.predict.prediction import Prediction, predict
from meshwright.predict.prices import BF16_BYTES
from meshwright.predict.step import price
from meshwright.units import gib

EXACT = 500  # of the best in closed form, priced again from the exact schedule
MOST_KEPT = 500  # layouts of one search
# The closed form adds up chains of operations that wait for each other, so the exact schedule never takes less (but for rounding, and by
# what tests/plan/test_search.py has seen): layouts that are behind in closed form stay behind.
CLOSED_EXCESS = 1.001
Progress = Callable[[int, int], None]  # rows of degrees done, and in all
Column = NDArray[np.float64]
ENDS = ("first_stage_layers", "last_stage_layers")
Choice = tuple[int, int]  # ZeRO stage, index into RECOMPUTE


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: layouts from the best on, with their step times.

    Every legal layout is counted once: priced, pruned or unfit.
    """

    layouts: tuple[Layout, ...]
    step_s: tuple[float, ...]  # from the exact schedule
    num_layouts: int  # legal, fitting, fully priced
    num_pruned: int  # legal, dropped unpriced: a lesser choice fits, or the degrees' bound is too slow already
    num_unfit: int  # legal, but too large for the memory
    search_s: float

    @property
    def num_legal(self) -> int:
        """All legal layouts: 1 where nothing was left to choose."""
        return self.num_layouts + self.num_pruned + self.num_unfit


@dataclass(slots=True)
class _Tally:
    num_layouts: int = 0
    num_pruned: int = 0
    num_unfit: int = 0
    nearest_bytes: float = np.inf  # memory the nearest miss lacks
    nearest: Layout | None = None


def usual_features(job: Job) -> Features:
    """Every choice open, and the switches as software for this kind of chip and precision has them."""
    usual = job.usual_layout()
    return Features(overlap_tp=usual.overlap_tp, cuda_graphs=usual.cuda_graphs)


def search(
    job: Job,
    *,
    features: Features | None = None,
    fixed: Fixed | None = None,
    keep: int = 5,
    reserve_bytes: float = RESERVE_BYTES,
    prune: bool = True,
    measure: Measure = STEP,
    progress: Progress = lambda done, total: None,
) -> Found:
    """The layouts that fit and have the least of a measure (the step's seconds), from the best on.

    Of layouts that differ only in their ZeRO stage and recompute the best one stands for all.
    """
    started = time.perf_counter()
    fixed = fixed or Fixed()
    features = fixed.narrowed(features or usual_features(job))
    space, bounds = _bounded_space(job, features, fixed, measure)
    memory = _Memory(job, reserve_bytes, features)
    best, tally = _Best(job, measure, max(keep, EXACT)), _Tally()
    lesser = min(features.recompute, key=RECOMPUTE.index)
    opened = space.batches((min(features.zero_stages),), (lesser,)) if prune else space.batches(features.zero_stages, features.recompute)
    for batch, done in opened:
        if prune and bounds[done] > best.limit:
            tally.num_pruned += space.num_layouts(done)
            break
        fitting = memory.least(batch, features, tally) if prune else batch.take(memory.fits(batch, tally))
        best.add(fitting)
        tally.num_layouts += len(fitting)
        progress(done, len(space.rows))
    progress(len(space.rows), len(space.rows))
    if not tally.num_layouts:
        raise _nothing_fits(job.cluster, tally, fixed, reserve_bytes)
    ranked, seconds = _exact(predict(job, best.layouts), measure, keep)
    return Found(
        layouts=ranked,
        step_s=seconds,
        num_layouts=tally.num_layouts,
        num_pruned=tally.num_pruned,
        num_unfit=tally.num_unfit,
        search_s=time.perf_counter() - started,
    )


@typed
def check_kept(keep: int) -> None:
    """Raise where a search is to keep no layout, or more than anyone reads: each one kept is timed by its exact schedule."""
    if not 1 <= keep <= MOST_KEPT:
        raise InputError(f"keep is {keep:,}, and a search keeps 1 to {MOST_KEPT} layouts", where="keep", fix=f"give 1 to {MOST_KEPT}")


def best_forecasts(
    job: Job,
    *,
    keep: int = 5,
    layout: str = "",
    features: Features | None = None,
    progress: Progress = lambda done, total: None,
) -> list[Forecast]:
    """The best layouts of a job by step time, each with its forecast; `layout` fixes some of the choices."""
    check_kept(keep)
    check_type("features", features, Features | None, "search")
    found = search(
        job, features=features, fixed=fixed_by(layout), keep=keep, reserve_bytes=reserve_for(job.cluster.accelerator), progress=progress
    )
    return [forecast(job, one) for one in found.layouts]


def least_of(job: Job, features: Features | None, fixed: Fixed, measure: Measure = STEP) -> float:
    """The lower bound of a measure (the step's seconds) over all layouts of a job; inf where no degrees divide the cluster."""
    features = fixed.narrowed(features or usual_features(job))
    try:
        _, bounds = _bounded_space(job, features, fixed, measure)
    except InputError:
        return float(np.inf)
    return float(bounds[0])


def _bounded_space(job: Job, features: Features, fixed: Fixed, measure: Measure = STEP) -> tuple[Space, Column]:
    """All that may be searched, the degrees with the lowest bound first, and those bounds."""
    rows = degrees(job.model, job.cluster, job.workload, features, fixed)
    if not rows:
        raise _no_degrees(job.model, job.cluster, job.workload, features, fixed)
    space = Space.of(job.model, job.cluster, rows, features, fixed)
    bounds = _bounds(job, space, measure)
    order = np.argsort(bounds, kind="stable")
    return space.sorted(order), bounds[order]


def _bounds(job: Job, space: Space, measure: Measure) -> Column:
    """What no layout of a row of degrees can stay under.

    Its step under the kindest schedule on a network that takes no time, but for tensor parallelism: that has a domain to itself, whose
    links are the fastest of the machine.
    """
    if job.software.profile:  # a machine of one's own: few layouts, and messages were timed on its own network only
        return np.zeros(len(space.rows))
    asked, constants = inputs_of(job), job.software.constants
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
        tier_is_fabric=np.zeros_like(free),
    )
    kinds = {"zero-bubble"} & set(space.features.schedules) | {"1f1b" for name in space.features.schedules if name != "zero-bubble"}
    silent = replace(constants, round_s=0.0)
    steps = [price(kind_network, space.bare(kind), silent) for kind in sorted(kinds)]
    # Replicas exchange nothing: experts that are shared out over tensor ranks would, and differently in every ZeRO stage.
    return np.asarray(np.min([measure.value(measure.least_times(step)) for step in steps], axis=0))


class _Memory:
    """What there is, and which layouts need no more."""

    def __init__(self, job: Job, reserve_bytes: float, features: Features) -> None:
        chip, precision = job.cluster.accelerator, job.workload.precision
        self.room_bytes = chip.room_bytes - reserve_bytes
        self._job = job
        recipe = recipe_for(precision, chip)
        copied = recipe.number_format == "fp8" and not recipe.needs and not features.low_weights
        self._recipe = replace(recipe, weight_bytes=recipe.weight_bytes + BF16_BYTES) if copied else recipe

    def footprint(self, layouts: Layouts) -> Footprint:
        """Bytes of every layout."""
        return footprint(self._job.model, self._job.workload, layouts, self._recipe)

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
        num_micro_batches = self._job.workload.global_batch // (batch.dp * batch.micro_batch)
        comparable = (batch.pp > 1) & (num_micro_batches > 1)
        kept: list[Layouts] = []
        fitted: dict[Choice, NDArray[np.bool_]] = {}
        for stage in sorted(features.zero_stages):
            # Without replicas all stages are one and the same.
            legal = sharing if stage > min(features.zero_stages) else np.ones(len(batch), dtype=bool)
            if stage == 3:  # zero bubble puts weight gradients off, and ZeRO 3 reduces them inside the backward
                legal = legal & ~(sharing & batch.is_zero_bubble)
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


class _Best:
    """The best layouts so far, in closed form."""

    def __init__(self, job: Job, measure: Measure, count: int) -> None:
        self._job, self._inputs, self._measure, self._count = job, inputs_of(job), measure, count
        profile = job.software.profile
        self._seen = measured(job.model, job.workload, profile) if profile else None
        self.layouts: Layouts = Layouts.of([])
        self.values: Column = np.empty(0)

    @property
    def limit(self) -> float:
        """What the last that is kept comes to; anything is kept while there is room."""
        return float(self.values[-1]) if len(self.values) >= self._count else float(np.inf)

    def add(self, layouts: Layouts) -> None:
        """Price the rows and keep the best of all so far."""
        if not len(layouts):
            return
        priced = price(self._inputs, layouts, self._job.software.constants, self._seen)
        values = self._measure.value(self._measure.times(self._job.workload, layouts, priced))
        good = np.flatnonzero(values < self.limit)
        if len(good):
            rows, all_values = concatenated([self.layouts, layouts.take(good)]), np.concatenate([self.values, values[good]])
            order = np.argsort(all_values, kind="stable")[: self._count]
            self.layouts, self.values = rows.take(order), all_values[order]


def _exact(prediction: Prediction, measure: Measure, keep: int) -> tuple[tuple[Layout, ...], tuple[float, ...]]:
    """The best rows (those of a prediction, the best first) priced from the exact schedule, and their steps in seconds."""
    layouts = _distinct(prediction.layouts)
    times = measure.times(prediction.job.workload, prediction.layouts, prediction.detail)
    timed = []
    for row in _least(prediction, layouts, times, measure, keep):
        excess_s = step_excess_s(prediction.detail, layouts[row], row)
        timed.append((float(measure.value(times.later(row, excess_s))), row, float(times.step_s[row]) + excess_s))
    ranked = sorted(timed)
    return tuple(layouts[row] for _, row, _ in ranked), tuple(step_s for _, _, step_s in ranked)


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


def _least(prediction: Prediction, layouts: Mapping[int, Layout], times: Times, measure: Measure, keep: int) -> list[int]:
    """Rows with the least by the exact schedule; those that have too much in closed form already are left."""
    closed = measure.value(times)
    timed: list[tuple[float, int]] = []
    for row, layout in layouts.items():
        if len(timed) >= keep and closed[row] > CLOSED_EXCESS * timed[keep - 1][0]:
            break
        bisect.insort(timed, (float(measure.value(times.later(row, quick_excess_s(prediction.detail, layout, row)))), row))
    return [row for _, row in timed[:keep]]


def _no_degrees(model: Model, cluster: Cluster, workload: Workload, features: Features, fixed: Fixed) -> InputError:
    """The complaint that nothing divides, with what would, were one of the fixed degrees free."""
    named = [key for key in fixed.values if key in (*DEGREES, *ENDS)]
    fix = "choose a number of accelerators and a batch with common divisors (powers of two times the nodes)"
    for key in named:
        others = Fixed({name: value for name, value in fixed.values.items() if name != key})
        rows: list[Row] = degrees(model, cluster, workload, features, others)
        if rows and key in DEGREES:
            able = sorted({row[DEGREES.index(key)] for row in rows})
            fix = f"with the rest as it is, choose {SHORT_NAMES.get(key, key)} from {', '.join(map(str, able))}"
            break
        if rows:
            fix = f"leave {key} out, or let the other stages divide the rest of the {model.num_layers} layers"
            break
    return InputError(
        f"no degrees multiply to {cluster.num_accelerators:,} accelerators and divide {model.name}, "
        f"a sequence of {workload.seq_len:,} and a batch of {workload.global_batch:,}{_with_fixed(fixed, named)}",
        where="plan",
        fix=fix,
    )


def _with_fixed(fixed: Fixed, keys: Iterable[str]) -> str:
    listed = ", ".join(f"{SHORT_NAMES.get(key, key)}={value_text(fixed.values[key])}" for key in keys)
    return f" with {listed}" if listed else ""


def _nothing_fits(cluster: Cluster, tally: _Tally, fixed: Fixed, reserve_bytes: float) -> MeshwrightError:
    chip = cluster.accelerator
    if not tally.num_unfit:
        return InputError(
            f"no layout has all fixed choices: they exclude each other{_with_fixed(fixed, fixed.values)}",
            where="--layout",
            fix="free one of them (1F1B has vp=1, ZeRO 3 excludes zero bubble, all-to-all needs cp x tp to divide the key-value heads)",
        )
    room = f"{gib(chip.room_bytes - reserve_bytes)} of {chip.name}'s {gib(chip.room_bytes)} ({gib(reserve_bytes)} are reserved)"
    near = (
        f"; the nearest miss, {tally.nearest}, lacks {gib(tally.nearest_bytes)} ({tally.nearest_bytes:,.0f} bytes)" if tally.nearest else ""
    )
    return FitError(
        f"no layout fits {room}: {tally.num_unfit:,} were tried{near}",
        where="plan",
        fix="use more accelerators, a smaller batch or sequence, a lower precision, or open recompute and ZeRO 3",
    )
