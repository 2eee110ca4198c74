"""Searches all legal layouts of a job and keeps the best: Job -> ranked layouts.

The closed form prices layouts as columns; the best few hundred are then priced again with the exact pipeline schedule. Four rules skip
layouts without pricing them, and no rule can skip the best one (`tests/plan/test_search.py` compares with a search that prices everything):
- a layout that does not fit into memory is not priced (it is counted, and the nearest miss is remembered);
- more recompute never makes a step shorter, so it is tried only where less recompute does not fit;
- sharding more than the optimizer never makes a pipelined step of several micro-batches shorter, so ZeRO 2 and 3 are tried there only
  where ZeRO 1 does not fit;
- communication only makes a step longer, so degrees are skipped whose step is slower than the slowest layout kept even on a network that
  takes no time. Only the traffic of tensor parallelism is counted, over the fastest link of the machine.
The search minimizes a `Measure`. The rules are valid for all measures, because each grows with the step and with the work in it.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.arguments import typed
from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import FitError, InputError, MeshwrightError, argument
from meshwright.job import Job
from meshwright.layout import AXES, CP_KINDS, RECOMPUTE, SHORT_NAMES, Layout, Layouts, value_text
from meshwright.plan.candidates import DEGREES, Allowed, Fixed, Row, Space, concatenated, degrees
from meshwright.plan.features import Features
from meshwright.plan.measure import STEP, Measure, Times
from meshwright.plan.numbering import PP_LAST, same_numbers
from meshwright.plan.stack import ANY, asked_of
from meshwright.plan.stack.rule import Stack
from meshwright.predict import software as sw
from meshwright.predict.exact import quick_excess_s, step_excess_s
from meshwright.predict.footprint import RESERVE_BYTES, Footprint, footprint, recipe_for, spare_bytes
from meshwright.predict.inputs import inputs_of
from meshwright.predict.measured import measured
from meshwright.predict.placement import place, tier_sizes
from meshwright.predict.prediction import Prediction, predict
from meshwright.predict.prices import BF16_BYTES
from meshwright.predict.step import price
from meshwright.units import gib

# Memory to spare is compared in tenths of an accelerator's, up to two. Less is lost to fragments of the allocator, and a fifth is room for
# a longer sequence or another kernel's workspace: more than that makes no plan safer. An assumption.
SPARE_STEPS, MOST_SPARE_STEPS = 10, 2
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
    """The result of a search: layouts with their step times, the best first.

    Every legal layout is counted once: as priced, pruned or too large for memory.
    """

    layouts: tuple[Layout, ...]
    step_s: tuple[float, ...]  # from the exact schedule
    num_equal: int  # how many of the first layouts are equal, given how far predicted differences are off
    num_layouts: int  # legal, fitting, fully priced
    num_pruned: int  # legal, dropped unpriced: a lesser choice fits, or the degrees' bound is too slow already
    num_unfit: int  # legal, but too large for the memory
    search_s: float

    @property
    def num_legal(self) -> int:
        """Number of all legal layouts; 1 if nothing was left to choose."""
        return self.num_layouts + self.num_pruned + self.num_unfit


@dataclass(slots=True)
class _Tally:
    num_layouts: int = 0
    num_pruned: int = 0
    num_unfit: int = 0
    refused: Layout | None = None  # one that the stack does not run
    nearest_bytes: float = np.inf  # memory the nearest miss lacks
    nearest: Layout | None = None


def usual_features(job: Job) -> Features:
    """All choices open, with the switches that software for this kind of chip and precision uses."""
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
    stack: Stack = ANY,
    noise: float = 0.0,
    progress: Progress = lambda done, total: None,
) -> Found:
    """The best layouts that fit and that `stack` can run, by a measure (by default the seconds of a step).

    Of layouts that differ only in ZeRO stage and recompute, or in a rank order that puts every axis on the same tiers, only the best is
    returned. Layouts within `noise` of the best, as a fraction, are equal: of these, the one with more memory to spare comes first.
    """
    started = time.perf_counter()
    fixed = fixed or Fixed()
    features = opened(job, features, fixed, stack)
    space, bounds = _bounded_space(job, features, fixed, measure, stack)
    memory = _Memory(job, reserve_bytes, features, fixed, stack)
    best, tally = _Best(job, measure, max(keep, EXACT)), _Tally()
    lesser = min(features.recompute, key=RECOMPUTE.index)
    made = space.batches((min(features.zero_stages),), (lesser,)) if prune else space.batches(features.zero_stages, features.recompute)
    for batch, done in made:
        if prune and bounds[done] > best.limit:
            tally.num_pruned += space.num_layouts(done)
            break
        fitting = memory.least(batch, features, tally) if prune else memory.all_of(batch, tally)
        best.add(fitting)
        tally.num_layouts += len(fitting)
        progress(done, len(space.rows))
    progress(len(space.rows), len(space.rows))
    if not tally.num_layouts:
        raise _nothing_fits(job, tally, fixed, reserve_bytes, stack)
    ranked, seconds, num_equal = _exact(predict(job, best.layouts), measure, keep, noise)
    return Found(
        layouts=ranked,
        step_s=seconds,
        num_equal=num_equal,
        num_layouts=tally.num_layouts,
        num_pruned=tally.num_pruned,
        num_unfit=tally.num_unfit,
        search_s=time.perf_counter() - started,
    )


@typed
def check_kept(keep: int) -> None:
    """Raise an error if a search should keep no layout, or too many: each one is timed by its exact schedule."""
    if not 1 <= keep <= MOST_KEPT:
        raise InputError(
            f"{argument('keep')} is {keep:,}, and a search keeps 1 to {MOST_KEPT} layouts",
            where=argument("keep"),
            fix=f"give 1 to {MOST_KEPT}",
        )


def opened(job: Job, features: Features | None, fixed: Fixed, stack: Stack) -> Features:
    """The choices that are open to a search: those of the stack, except for what is fixed."""
    return fixed.narrowed(stack.narrowed(features or usual_features(job)))


def has_layout(job: Job, fixed: Fixed, stack: Stack) -> bool:
    """Whether a stack can run any legal layout with the fixed choices, even if it does not fit into memory."""
    features = opened(job, None, fixed, stack)
    rows = degrees(job.model, job.cluster, job.workload, features, fixed)
    if stack.is_any or not rows:
        return bool(rows)
    space, asked = Space.of(job.model, job.cluster, rows, features, fixed), asked_of(job)
    found = (
        stack.allows(asked, stack.settled(batch, fixed.values)) for batch, _ in space.batches(features.zero_stages, features.recompute)
    )
    return any(allowed.any() for allowed in found)


def least_of(job: Job, features: Features | None, fixed: Fixed, measure: Measure = STEP, stack: Stack = ANY) -> float:
    """A lower bound of a measure (by default the seconds of a step) over all layouts of a job.

    Infinite if no degrees divide the cluster.
    """
    features = opened(job, features, fixed, stack)
    try:
        _, bounds = _bounded_space(job, features, fixed, measure)
    except InputError:
        return float(np.inf)
    return float(bounds[0])


def _bounded_space(job: Job, features: Features, fixed: Fixed, measure: Measure = STEP, stack: Stack = ANY) -> tuple[Space, Column]:
    """All rows that may be searched, those with the lowest bound first, and their bounds."""
    rows = degrees(job.model, job.cluster, job.workload, features, fixed)
    if not rows:
        raise _no_degrees(job.model, job.cluster, job.workload, features, fixed)
    space = Space.of(job.model, job.cluster, rows, features, fixed, _allowed(job, fixed, stack))
    bounds = _bounds(job, space, measure)
    order = np.argsort(bounds, kind="stable")
    return space.sorted(order), bounds[order]


def _allowed(job: Job, fixed: Fixed, stack: Stack) -> Allowed | None:
    """Which layouts of a search a stack can run; None if it can run all."""
    asked = asked_of(job)
    if not stack.restricts(asked):
        return None
    return Allowed(
        mask=lambda rows: stack.allows(asked, stack.settled(rows, fixed.values)),
        by_order=not stack.has_all_orders,
        by_recompute="cuda_graphs" in fixed.values,  # nothing else that stacks differ in depends on it
    )


def _bounds(job: Job, space: Space, measure: Measure) -> Column:
    """Lower bounds for all layouts of each row of degrees.

    The bound is the step with the fastest schedule on a network that takes no time. Only the traffic of tensor parallelism is counted, as
    if it had a domain with the fastest links of the machine.
    """
    if job.software.profile:  # the user's own machine: few layouts, and messages were timed on its own network only
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
    # Replicas exchange nothing in the bound. Experts that are split over tensor ranks would, differently in every ZeRO stage.
    return np.asarray(np.min([measure.value(measure.least_times(step)) for step in steps], axis=0))


class _Memory:
    """The available memory, and which layouts fit into it, among those that a stack can run."""

    def __init__(self, job: Job, reserve_bytes: float, features: Features, fixed: Fixed, stack: Stack) -> None:
        self._asked, self._fixed, self._stack = asked_of(job), fixed, stack
        self._restricted = stack.restricts(self._asked)
        chip, precision = job.cluster.accelerator, job.workload.precision
        self.room_bytes = chip.room_bytes - reserve_bytes
        self._job = job
        recipe = recipe_for(precision, chip)
        copied = recipe.number_format == "fp8" and not recipe.needs and not features.low_weights
        self._recipe = replace(recipe, weight_bytes=recipe.weight_bytes + BF16_BYTES) if copied else recipe

    def footprint(self, layouts: Layouts) -> Footprint:
        """Bytes of every layout."""
        return footprint(self._job.model, self._job.workload, layouts, self._recipe, is_own=self._job.software.is_own)

    def fits(self, layouts: Layouts, tally: _Tally) -> NDArray[np.bool_]:
        """Which rows are legal and fit. The nearest of the others is remembered for the error message."""
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

    def all_of(self, batch: Layouts, tally: _Tally) -> Layouts:
        """Every row that the stack runs and that fits."""
        if not self._restricted:
            return batch.take(self.fits(batch, tally))
        rows = self._stack.settled(batch, self._fixed.values)
        rows = rows.take(self._runs(rows, np.ones(len(batch), dtype=bool), tally))
        return rows.take(self.fits(rows, tally))

    def _allowed(self, batch: Layouts, legal: NDArray[np.bool_], choice: Choice, tally: _Tally) -> NDArray[np.bool_]:
        """Which of the legal rows the stack runs with a choice."""
        if not self._restricted:
            return legal
        stage, kind = choice
        return self._runs(self._stack.settled(_with(batch, zero_stage=stage, recompute=kind), self._fixed.values), legal, tally)

    def _runs(self, rows: Layouts, legal: NDArray[np.bool_], tally: _Tally) -> NDArray[np.bool_]:
        """Which of the legal rows the stack runs; one that it does not run is remembered."""
        allowed = legal & self._stack.allows(self._asked, rows)
        if tally.refused is None and (refused := np.flatnonzero(legal & ~allowed)).size:
            tally.refused = rows.row(int(refused[0]))
        return allowed

    def least(self, batch: Layouts, features: Features, tally: _Tally) -> Layouts:
        """Every row with each (ZeRO stage, recompute) that fits, unless a choice that is never slower fits too."""
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
                allowed = self._allowed(batch, legal, (stage, kind), tally)
                lesser = allowed & _covered(fitted, (stage, kind), comparable)
                tally.num_pruned += int(lesser.sum())
                tried = np.flatnonzero(allowed & ~lesser)
                rows = self._stack.settled(_with(batch.take(tried), zero_stage=stage, recompute=kind), self._fixed.values)
                good = self.fits(rows, tally)
                fitted[(stage, kind)] = lesser.copy()
                fitted[(stage, kind)][tried[good]] = True
                kept.append(rows.take(good))
        return concatenated(kept)


def _covered(fitted: dict[Choice, NDArray[np.bool_]], choice: Choice, comparable: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Rows in which a choice that is never slower fits.

    No more recompute, and the same ZeRO stage or, if they can be compared, a lower one. Replicated (stage 0) and sharded optimizers cannot
    be compared. Higher stages cannot be compared either if a step has one micro-batch or no pipeline: they reduce no more often there, and
    are priced as hiding gradients behind all layers, while stage 1 leaves a chunk or a layer exposed.
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
        """The value of the last layout that is kept; infinite while there is room."""
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


def _exact(prediction: Prediction, measure: Measure, keep: int, noise: float) -> tuple[tuple[Layout, ...], tuple[float, ...], int]:
    """The best rows by the exact schedule, their step times in seconds, and how many are equal."""
    layouts = _distinct(prediction.layouts, prediction.job.cluster)
    times = measure.times(prediction.job.workload, prediction.layouts, prediction.detail)
    quick = _Quick(prediction, layouts, times, measure)
    timed = []
    for row in quick.preferred(keep, noise) if noise else quick.least(keep):
        excess_s = step_excess_s(prediction.detail, layouts[row], row)
        timed.append((float(measure.value(times.later(row, excess_s))), row, float(times.step_s[row]) + excess_s))
    ranked = sorted(timed)
    limit = (1 + noise) * ranked[0][0]
    num_equal = sum(value <= limit for value, _, _ in ranked)
    if noise:
        rank = {row: number for number, row in enumerate(quick.order)}
        ranked[:num_equal] = sorted(ranked[:num_equal], key=lambda one: rank[one[1]])
    return tuple(layouts[row] for _, row, _ in ranked), tuple(step_s for _, _, step_s in ranked), num_equal


def _distinct(rows: Layouts, cluster: Cluster) -> dict[int, Layout]:
    """By row, the layouts that differ in more than ZeRO stage, recompute and the name of their rank order.

    Of layouts that do not differ, the first. Rank orders differ if an axis crosses other tiers.
    """
    members = place(rows, tier_sizes(cluster)).members
    crossed = [np.diff(members[axis], axis=0, prepend=1.0) > 0 for axis in AXES]
    compared = [f.name for f in fields(Layouts) if f.name not in ("zero_stage", "recompute", "order", "cuda_graphs")]
    alike = np.concatenate([*([getattr(rows, name)] for name in compared), *crossed]).T
    firsts = {key.tobytes(): row for row, key in reversed(list(enumerate(np.ascontiguousarray(alike))))}
    return {row: rows.row(row) for row in sorted(firsts.values())}


class _Quick:
    """Rows of a prediction, timed by the exact schedule; each row at most once, and only as many as needed."""

    def __init__(self, prediction: Prediction, layouts: Mapping[int, Layout], times: Times, measure: Measure) -> None:
        self._prediction, self._layouts, self._times, self._measure = prediction, layouts, times, measure
        self._closed = measure.value(times)
        self._timed: dict[int, float] = {}
        self.order: list[int] = list(layouts)  # rows by preference, where they are equal

    def value(self, row: int) -> float:
        """The measure of a row by the exact schedule."""
        if row not in self._timed:
            excess_s = quick_excess_s(self._prediction.detail, self._layouts[row], row)
            self._timed[row] = float(self._measure.value(self._times.later(row, excess_s)))
        return self._timed[row]

    def least(self, keep: int) -> list[int]:
        """The best rows. Rows that are already worse in closed form are not timed."""
        timed: list[tuple[float, int]] = []
        for row in self._layouts:
            if len(timed) >= keep and self._closed[row] > CLOSED_EXCESS * timed[keep - 1][0]:
                break
            bisect.insort(timed, (self.value(row), row))
        return [row for _, row in timed[:keep]]

    def preferred(self, keep: int, noise: float) -> list[int]:
        """Rows within `noise` of the best, in order of preference; if these are too few, the next best ones."""
        best = self.least(keep)
        limit = (1 + noise) * self.value(best[0])
        chip = self._prediction.job.cluster.accelerator
        spare = np.minimum(np.floor(SPARE_STEPS * spare_bytes(self._prediction.memory, chip) / chip.memory_bytes), MOST_SPARE_STEPS)
        unusual = num_unusual(self._prediction.layouts, self._prediction.job.cluster)
        self.order.sort(key=lambda row: (-spare[row], unusual[row], self._closed[row]))
        equal: list[int] = []
        for row in self.order:
            if len(equal) == keep:
                break
            if self._closed[row] <= limit and self.value(row) <= limit:
                equal.append(row)
        return equal + [row for row in best if row not in equal and self.value(row) > limit][: keep - len(equal)]


def num_unusual(rows: Layouts, cluster: Cluster) -> NDArray[np.int64]:
    """Number of unusual choices of each layout: each must be set, and fewer people have tested it.

    They are: zero bubble, context parallelism other than a ring, ZeRO 2 or 3 in a pipeline, recompute, and a rank order other than the one
    that every stack has. An order that keeps a replica in one domain of the fastest network is not one of them: it decides which traffic
    leaves the rack.
    """
    domain = max((tier.num_accelerators for tier in cluster.tiers[:-1]), default=1)
    unusual = (
        rows.is_zero_bubble,
        (rows.cp > 1) & (rows.cp_kind != CP_KINDS.index("ring")),
        (rows.zero_stage > 1) & (rows.pp > 1),
        rows.recompute != RECOMPUTE.index("none"),
        ~same_numbers(rows, PP_LAST) & (rows.tp * rows.cp * rows.pp > domain),
    )
    return np.asarray(np.sum(unusual, axis=0), dtype=np.int64)


def _no_degrees(model: Model, cluster: Cluster, workload: Workload, features: Features, fixed: Fixed) -> InputError:
    """The error if nothing divides; it says what would divide if one of the fixed degrees were free."""
    named = [key for key in fixed.values if key in (*DEGREES, *ENDS)]
    fix = "choose a number of accelerators and a batch that share many divisors, for example powers of two times the accelerators of a node"
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


def _nothing_fits(job: Job, tally: _Tally, fixed: Fixed, reserve_bytes: float, stack: Stack) -> MeshwrightError:
    chip = job.cluster.accelerator
    if not tally.num_unfit and tally.refused:
        return InputError(
            f"{stack.title} runs no layout of this job{_with_fixed(fixed, fixed.values)}: for example, it "
            f"{stack.refusal(asked_of(job), tally.refused).removeprefix(f'{stack.title} ')}",
            where=argument("stack"),
            fix=f"free a fixed choice, or plan for another stack ({argument('stack', 'any')}: for none in particular)",
        )
    if not tally.num_unfit:
        return InputError(
            f"no layout has all fixed choices: they exclude each other{_with_fixed(fixed, fixed.values)}",
            where=argument("layout"),
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
