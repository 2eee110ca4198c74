"""All legal layouts, as columns.

Degrees are enumerated once, then combined with the choices that do not depend on each other. Illegal layouts are never made: degrees
multiply to the size of the machine and divide the model and the batch, and rank orders that put every axis on the same tiers are one
layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import AXES, CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, SHORT_NAMES, Layout, Layouts, read_choices, value_text
from meshwright.plan.features import FLAGS, Features
from meshwright.predict.placement import place, tier_sizes
from meshwright.predict.stages import stage_layers

ROWS = 8_192  # of one batch of columns: large enough for numpy, small enough for the cache
STRIDE = 64  # rows of degrees crossed at a time
MOST_PARTS = 8  # of an expert that a search divides it into: with more its products become too narrow
DEGREES = ("tp", "cp", "pp", "vp", "dp", "ep", "etp", "micro_batch")  # a row of degrees holds them in this order
INTERLEAVED, ZERO_BUBBLE, ALL_TO_ALL = SCHEDULES.index("interleaved"), SCHEDULES.index("zero-bubble"), CP_KINDS.index("all-to-all")
RING = CP_KINDS.index("ring")
Ints = NDArray[np.int64]
Row = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which layouts may be proposed, and whether this depends on the rank order or on what is recomputed."""

    mask: Callable[[Layouts], NDArray[np.bool_]]
    by_order: bool = True
    by_recompute: bool = True


def divisors(number: int) -> list[int]:
    """The divisors of a number, in order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Degrees and choices that the user fixed, by the names of a layout's fields. The search does not change them."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def allows(self, key: str, value: object) -> bool:
        """Whether a value may be searched."""
        return key not in self.values or self.values[key] == value

    def narrowed(self, features: Features) -> Features:
        """The features with all fixed choices and switches; the user may fix something that a stack does not have."""
        lists = {"zero_stage": "zero_stages", "recompute": "recompute", "schedule": "schedules", "cp_kind": "cp_kinds", "order": "orders"}
        changes: dict[str, Any] = {lists[key]: (value,) for key, value in self.values.items() if key in lists}
        return replace(features, **changes, **{key: value for key, value in self.values.items() if key in FLAGS})

    def __str__(self) -> str:
        """What is fixed, as `--layout` takes it."""
        return ",".join(f"{SHORT_NAMES.get(key, key)}={value_text(value)}" for key, value in self.values.items())

    @property
    def ends(self) -> tuple[int, int]:
        """Layers stated for the first and the last stage; 0 if not stated."""
        return int(self.values.get("first_stage_layers", 0)), int(self.values.get("last_stage_layers", 0))

    @property
    def zero_ranks(self) -> int:
        """Replicas that share one sharded state; 0: all."""
        return int(self.values.get("zero_ranks", 0))

    def shares(self, num_replicas: int) -> bool:
        """Whether so many replicas divide into groups that each share a state."""
        return not self.zero_ranks or num_replicas % self.zero_ranks == 0


def fixed_by(text: str) -> Fixed:
    """What a text such as `tp=4,cp=2` fixes. Each value is checked alone; the search finds out whether they divide."""
    values = read_choices(text)
    sharing = values.get("zero_ranks", 0)
    beside = {
        "vp": {"pp": 2},
        "ep": {"dp": values.get("ep", 1)},
        "etp": {"dp": values.get("etp", 1)},
        "zero_ranks": {"dp": max(sharing, 1)},
    }  # a layout with only one of these needs another axis
    for key, value in values.items():
        Layout(**{**beside.get(key, {}), key: value})
    return Fixed(values)


def degrees(model: Model, cluster: Cluster, workload: Workload, features: Features, fixed: Fixed) -> list[Row]:
    """Every (tp, cp, pp, vp, dp, ep, etp, micro-batch) that divides the machine, the model and the batch."""
    total = cluster.num_accelerators
    found: list[Row] = []
    for tp in _tensor_degrees(model, total, features):
        for cp in _context_degrees(workload, total // tp, tp, features):
            for pp in divisors(total // (tp * cp)):
                dp = total // (tp * cp * pp)
                if pp > model.num_layers + 2 or workload.global_batch % dp or (features.max_pp and pp > features.max_pp):
                    continue
                wanted = all(fixed.allows(axis, value) for axis, value in (("tp", tp), ("cp", cp), ("pp", pp), ("dp", dp)))
                if wanted and fixed.shares(dp * cp):
                    found += _inner_degrees(model, workload, features, fixed, (tp, cp, pp, dp))
    return found


def _inner_degrees(model: Model, workload: Workload, features: Features, fixed: Fixed, outer: tuple[int, int, int, int]) -> Iterator[Row]:
    """Rows of (tp, cp, pp, dp) with every number of chunks, experts' degree and micro-batch that they allow."""
    tp, cp, pp, dp = outer
    chunks = [vp for vp in _chunks(model.num_layers, pp, features.max_vp, fixed.ends) if fixed.allows("vp", vp)]
    if not features.uneven_split and fixed.ends == (0, 0):
        chunks = [vp for vp in chunks if model.num_layers % (pp * vp) == 0]
    experts = _expert_degrees(model, dp * cp * tp, features, fixed)
    sizes = [size for size in divisors(workload.global_batch // dp) if fixed.allows("micro_batch", size)]
    if features.max_micro_batch:
        sizes = [size for size in sizes if size <= features.max_micro_batch]
    return ((tp, cp, pp, vp, dp, *degrees, size) for vp in chunks for degrees in experts for size in sizes)


def _tensor_degrees(model: Model, total: int, features: Features) -> list[int]:
    """Degrees that divide heads, MLP and shared experts, and divide key-value heads or are a multiple of them. A vocabulary is padded."""
    widths = (model.num_heads, model.ffn_hidden, model.experts.num_shared * model.experts.hidden if model.experts else 0)
    kv = model.num_kv_heads
    return [
        tp
        for tp in divisors(total)
        if all(width % tp == 0 for width in widths) and (kv % tp == 0 or tp % kv == 0) and (not features.max_tp or tp <= features.max_tp)
    ]


def _context_degrees(workload: Workload, total: int, tp: int, features: Features) -> list[int]:
    """Degrees that cut the sequence into two pieces per rank, so that causal work is balanced."""
    found = [cp for cp in divisors(total) if cp == 1 or workload.seq_len % (2 * cp * tp) == 0]
    return [cp for cp in found if workload.seq_len % (cp * tp) == 0 and (not features.max_cp or cp <= features.max_cp)]


@cache
def _chunks(num_layers: int, pp: int, most: int, ends: tuple[int, int]) -> tuple[int, ...]:
    """Numbers of chunks per stage for which the layers divide."""
    limit = 1 if pp == 1 else max((num_layers + 2) // pp, 1)
    chunks = np.arange(1, min(limit, most or limit) + 1)
    return tuple(chunks[stage_layers(num_layers, pp, chunks, *ends).legal].tolist())


def _expert_degrees(model: Model, ranks: int, features: Features, fixed: Fixed) -> list[tuple[int, int]]:
    """Every (ep, etp) that divides the experts and the ranks of a stage."""
    degrees = [ep for ep in divisors(model.experts.num_experts if model.experts else 1) if ranks % ep == 0 and fixed.allows("ep", ep)]
    return [(ep, etp) for ep in degrees for etp in _parts_of_experts(model, ep, ranks // ep, features, fixed)]


def _parts_of_experts(model: Model, ep: int, ranks: int, features: Features, fixed: Fixed) -> list[int]:
    """Into how many parts each expert may be divided over so many ranks.

    A search divides experts only where ep cannot take these ranks: a larger ep keeps as few weights and sends fewer bytes. It does not
    where the user fixed ep alone, so that a layout that says nothing of etp has none.
    """
    if not model.experts or not ("etp" in fixed.values or (features.divides_experts and "ep" not in fixed.values)):
        return [1] if fixed.allows("etp", 1) else []
    asked = [fixed.values["etp"]] if "etp" in fixed.values else [etp for etp in divisors(ranks) if etp <= MOST_PARTS]
    searched = [etp for etp in asked if "etp" in fixed.values or math.gcd(model.experts.num_experts // ep, etp) == 1]
    widths = (model.experts.hidden, model.hidden if model.biases else 0)
    return [etp for etp in searched if ranks % etp == 0 and all(width % etp == 0 for width in widths)]


def rank_orders(rows: Sequence[Row], cluster: Cluster, features: Features) -> dict[Row, list[int]]:
    """For every (tp, cp, pp, dp), indices of the rank orders that differ in the tiers that an axis crosses."""
    distinct = sorted({(row[0], row[1], row[2], row[4]) for row in rows})
    base = np.array(distinct, dtype=np.int64).reshape(-1, 4)
    sizes = tier_sizes(cluster)
    seen: list[set[bytes]] = [set() for _ in distinct]
    kept: dict[Row, list[int]] = {key: [] for key in distinct}
    ones = np.ones(len(distinct), dtype=np.int64)
    for index in (i for i, order in enumerate(ORDERS) if order in features.orders):
        columns = {f.name: ones for f in fields(Layouts)} | dict(zip(AXES, base.T, strict=True)) | {"order": ones * index}
        members = place(Layouts(**columns), sizes).members
        where = np.concatenate([members[axis] for axis in AXES]).T
        for i, key in enumerate(distinct):
            signature = where[i].tobytes()
            if signature not in seen[i]:
                seen[i].add(signature)
                kept[key].append(index)
    return kept


@dataclass(frozen=True, slots=True)
class Space:
    """Rows of degrees, and all other choices."""

    rows: Sequence[Row]
    orders: Mapping[Row, list[int]]  # by (tp, cp, pp, dp)
    features: Features
    num_kv_heads: int
    ends: tuple[int, int]  # layers stated for the first and last stage
    zero_ranks: int  # replicas that share one sharded state; 0: all
    allowed: Allowed | None = None  # what a stack runs; None: everything

    @staticmethod
    def of(model: Model, cluster: Cluster, rows: Sequence[Row], features: Features, fixed: Fixed, allowed: Allowed | None = None) -> Space:
        """The space over these rows of degrees."""
        return Space(rows, rank_orders(rows, cluster, features), features, model.num_kv_heads, fixed.ends, fixed.zero_ranks, allowed)

    def sorted(self, order: Ints) -> Space:
        """The same space with its rows in another order."""
        return replace(self, rows=[self.rows[i] for i in order])

    def num_layouts(self, first: int = 0) -> int:
        """Legal layouts of the rows from number `first` on."""
        if first >= len(self.rows):
            return 0
        if self.allowed:
            return self._num_allowed(first, self.allowed)
        tp, cp, pp, vp, dp = np.array(self.rows[first:], dtype=np.int64).T[:5]
        orders = np.array([len(self.orders[(row[0], row[1], row[2], row[4])]) for row in self.rows[first:]])
        options = self.features
        schedules = np.zeros(len(tp), dtype=np.int64)
        for name in options.schedules:
            fewer = (3 in options.zero_stages) & (name == "zero-bubble") & (pp > 1)  # see `_crossed`
            schedules += self._runs(SCHEDULES.index(name), pp, vp) * np.where(dp * cp > 1, len(options.zero_stages) - fewer, 1)
        kinds = sum((self._has(CP_KINDS.index(kind), tp, cp) for kind in options.cp_kinds), np.zeros(len(tp), dtype=np.int64))
        return int((orders * schedules * kinds * len(options.recompute)).sum())

    def _num_allowed(self, first: int, allowed: Allowed) -> int:
        """Layouts of the rows from number `first` on that a stack runs."""
        grid = np.array(self.rows[first:], dtype=np.int64)
        orders = [self.orders[(row[0], row[1], row[2], row[4])] for row in self.rows[first:]]
        recompute = self.features.recompute if allowed.by_recompute else self.features.recompute[:1]
        if not allowed.by_order:
            counts = np.array([len(found) for found in orders])
            count = self._num_of(grid, ORDERS.index(AXES), counts, recompute, allowed)
        else:
            there = {index: np.array([index in found for found in orders]) for index in sorted({i for found in orders for i in found})}
            count = sum(
                self._num_of(grid[mask], index, np.ones(int(mask.sum()), dtype=np.int64), recompute, allowed)
                for index, mask in there.items()
            )
        return count * len(self.features.recompute) // len(recompute)

    def _num_of(self, grid: Ints, order: int, times: Ints, recompute: Sequence[str], allowed: Allowed) -> int:
        """Layouts of rows of degrees in one rank order that a stack runs, each row counted so many times."""
        count = 0
        for choice in self._choices(self.features.zero_stages, recompute):
            codes = tuple(np.broadcast_to(code, len(grid)) for code in choice)
            legal = np.flatnonzero(self._legal(grid.T, codes))
            made = self._made(grid.T[:, legal], np.broadcast_to(choice[:, None], (4, len(legal))), np.broadcast_to(order, len(legal)))
            count += int((times[legal] * allowed.mask(made)).sum())
        return count

    def batches(self, zero_stages: Sequence[int], recompute: Sequence[str]) -> Iterator[tuple[Layouts, int]]:
        """Batches of all legal layouts with these ZeRO stages and kinds of recompute, row by row, each with the rows done before it."""
        grid = np.array(self.rows, dtype=np.int64).reshape(-1, len(DEGREES))
        choices = self._choices(zero_stages, recompute)
        batch: list[Layouts] = []
        size, first = 0, 0
        for start in range(0, len(grid), STRIDE):
            part = self._crossed(grid[start : start + STRIDE], choices)
            batch.append(part)
            size += len(part)
            if size >= ROWS:
                yield concatenated(batch), first
                batch, size, first = [], 0, start + STRIDE
        if batch:
            yield concatenated(batch), first

    def _choices(self, zero_stages: Sequence[int], recompute: Sequence[str]) -> Ints:
        """Every (ZeRO stage, recompute, schedule, kind of cp) as indices."""
        found = [
            (zero, RECOMPUTE.index(dropped), SCHEDULES.index(schedule), CP_KINDS.index(kind))
            for zero in zero_stages
            for dropped in recompute
            for schedule in self.features.schedules
            for kind in self.features.cp_kinds
        ]
        return np.array(found, dtype=np.int64).reshape(-1, 4)

    def _crossed(self, grid: Ints, choices: Ints) -> Layouts:
        """Rows of degrees crossed with every rank order and choice that is legal for them."""
        picks = [self.orders[(row[0], row[1], row[2], row[4])] for row in grid.tolist()]
        num_orders = [len(pick) for pick in picks]
        n, k = len(grid), len(choices)
        legal = self._legal(np.repeat(grid.T[:5], k, axis=1), tuple(np.tile(choices.T, n)), lowest=choices[:, 0].min()).reshape(n, k)
        place_of, choice_of = np.nonzero(np.repeat(legal, num_orders, axis=0))  # no order makes a choice legal or not
        rows = np.repeat(grid, num_orders, axis=0)
        order = np.array([index for pick in picks for index in pick], dtype=np.int64)
        return self._made(rows.T[:, place_of], choices.T[:, choice_of], order[place_of])

    def _legal(self, degrees: Ints, choices: tuple[Ints, ...], lowest: int | None = None) -> NDArray[np.bool_]:
        """Which rows of degrees may have the choice beside them; `lowest` is the ZeRO stage of rows without replicas."""
        tp, cp, pp, vp, dp = degrees[:5]
        zero, _, schedule, kind = choices
        lowest = min(self.features.zero_stages) if lowest is None else lowest
        # Without replicas all ZeRO stages are the same, so only one is used.
        legal = self._has(kind, tp, cp) & self._runs(schedule, pp, vp) & ((dp * cp > 1) | (zero == lowest))
        # Zero bubble postpones weight gradients, but ZeRO 3 reduces them inside the backward pass.
        return np.asarray(legal & ((schedule != ZERO_BUBBLE) | (pp == 1) | (zero < 3) | (dp * cp == 1)))

    def _made(self, rows: Ints, choices: Ints, order: Ints) -> Layouts:
        """Layouts of columns of degrees, each with the choices and the rank order beside it."""
        columns = dict(zip(DEGREES, rows, strict=True))
        columns |= dict(zip(("zero_stage", "recompute", "schedule", "cp_kind"), choices, strict=True))
        # Without context parallelism its kind means nothing; whole heads for each rank would be asked of tp alone.
        split_heads = (columns["cp"] == 1) & (columns["cp_kind"] == ALL_TO_ALL) & (self.num_kv_heads % columns["tp"] > 0)
        columns["cp_kind"] = np.where(split_heads, RING, columns["cp_kind"])
        constant = {flag: int(getattr(self.features, flag)) for flag in FLAGS}
        constant |= dict(zip(("first_stage_layers", "last_stage_layers"), self.ends, strict=True), zero_ranks=self.zero_ranks)
        columns |= {key: np.full(len(order), value, dtype=np.int64) for key, value in constant.items()}
        return Layouts(**columns, order=order)

    def _has(self, kind: Any, tp: Ints, cp: Ints) -> NDArray[np.bool_]:
        """Where a kind of context parallelism is possible.

        Without context parallelism only one kind; with all-to-all, ranks hold whole heads.
        """
        only = min(CP_KINDS.index(name) for name in self.features.cp_kinds)
        return np.asarray(np.where(cp > 1, (kind != ALL_TO_ALL) | (self.num_kv_heads % (cp * tp) == 0), kind == only))

    def _runs(self, schedule: Any, pp: Ints, vp: Ints) -> NDArray[np.bool_]:
        """Where a schedule is possible.

        Without a pipeline only one; 1F1B has one chunk, interleaved has several (or one, if there is no 1F1B).
        """
        only = min(SCHEDULES.index(name) for name in self.features.schedules)
        several = (vp > 1) | ("1f1b" not in self.features.schedules)
        in_pipeline = np.where(schedule == ZERO_BUBBLE, True, np.where(schedule == INTERLEAVED, several, vp == 1))
        return np.asarray(np.where(pp > 1, in_pipeline, schedule == only))

    def bare(self, schedule: str) -> Layouts:
        """One layout per row of degrees with the cheapest of all choices except the schedule: a lower bound for all layouts of that row."""
        grid = np.array(self.rows, dtype=np.int64).reshape(-1, len(DEGREES))
        options = self.features
        kind = "ring" if options.cp_kinds == ("ring",) else "all-gather"  # the ring corrects its sums every round
        chosen = {"zero_stage": int(max(options.zero_stages) > 0), "schedule": SCHEDULES.index(schedule), "cp_kind": CP_KINDS.index(kind)}
        chosen |= {"recompute": min(RECOMPUTE.index(name) for name in options.recompute), "order": ORDERS.index(AXES)}
        chosen |= {flag: int(getattr(options, flag)) for flag in FLAGS}
        chosen |= dict(zip(("first_stage_layers", "last_stage_layers"), self.ends, strict=True), zero_ranks=self.zero_ranks)
        columns = {key: np.full(len(grid), value, dtype=np.int64) for key, value in chosen.items()}
        return Layouts(**dict(zip(DEGREES, grid.T, strict=True)), **columns)


def concatenated(batches: Sequence[Layouts]) -> Layouts:
    """Several batches of rows as one."""
    if len(batches) == 1:
        return batches[0]
    return Layouts(**{f.name: np.concatenate([getattr(batch, f.name) for batch in batches]) for f in fields(Layout)})
