"""Every legal layout, as columns.

Degrees are enumerated once, then crossed with the choices that do not depend on each other. What is illegal is never made: degrees multiply
to the machine, divide the model and the batch, and rank orders that put every axis on the same tiers are one layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import AXES, CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, Layout, Layouts
from meshwright.placement import place, tier_sizes
from meshwright.plan.features import Features
from meshwright.split import stage_layers

ROWS = 16_384  # of one batch of columns: large enough for numpy, small enough for the cache
STRIDE = 64  # rows of degrees crossed at a time
Ints = NDArray[np.int64]


def divisors(number: int) -> list[int]:
    """The divisors of a number, in order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True, slots=True)
class Fixed:
    """Degrees and choices the user fixed; the search leaves them alone."""

    values: dict[str, object]

    def allows(self, key: str, value: object) -> bool:
        """Whether a value may be searched."""
        return key not in self.values or self.values[key] == value


def degrees(model: Model, cluster: Cluster, workload: Workload, features: Features, fixed: Fixed) -> list[tuple[int, ...]]:
    """Every (tp, cp, pp, vp, dp, ep, micro-batch) that divides the machine, the model and the batch."""
    total = cluster.num_accelerators
    found: list[tuple[int, ...]] = []
    for tp in _tensor_degrees(model, total, features):
        for cp in _context_degrees(workload, total // tp, tp, features):
            for pp in divisors(total // (tp * cp)):
                dp = total // (tp * cp * pp)
                if pp > model.num_layers + 2 or workload.global_batch % dp or (features.max_pp and pp > features.max_pp):
                    continue
                if not all(fixed.allows(axis, value) for axis, value in (("tp", tp), ("cp", cp), ("pp", pp), ("dp", dp))):
                    continue
                chunks = [vp for vp in _chunks(model.num_layers, pp, features.max_vp) if fixed.allows("vp", vp)]
                experts = [ep for ep in _expert_degrees(model, dp * cp * tp) if fixed.allows("ep", ep)]
                sizes = [size for size in divisors(workload.global_batch // dp) if fixed.allows("micro_batch", size)]
                if features.max_micro_batch:
                    sizes = [size for size in sizes if size <= features.max_micro_batch]
                found += [(tp, cp, pp, vp, dp, ep, size) for vp in chunks for ep in experts for size in sizes]
    return found


def _tensor_degrees(model: Model, total: int, features: Features) -> list[int]:
    """Degrees that divide heads, vocabulary and MLP, and share key-value heads or copy them evenly."""
    widths = (model.num_heads, model.vocab_size, model.ffn_hidden)
    kv = model.num_kv_heads
    return [
        tp
        for tp in divisors(total)
        if all(width % tp == 0 for width in widths) and (kv % tp == 0 or tp % kv == 0) and (not features.max_tp or tp <= features.max_tp)
    ]


def _context_degrees(workload: Workload, total: int, tp: int, features: Features) -> list[int]:
    """Degrees that cut the sequence into two pieces a rank, so that causal work is even."""
    found = [cp for cp in divisors(total) if cp == 1 or workload.seq_len % (2 * cp * tp) == 0]
    return [cp for cp in found if workload.seq_len % (cp * tp) == 0 and (not features.max_cp or cp <= features.max_cp)]


@cache
def _chunks(num_layers: int, pp: int, most: int) -> tuple[int, ...]:
    """Chunks a stage may hold so that the layers divide."""
    if pp == 1:
        return (1,)
    limit = max((num_layers + 2) // pp, 1)
    chunks = np.arange(1, min(limit, most or limit) + 1)
    return tuple(chunks[stage_layers(num_layers, pp, chunks).legal].tolist())


def _expert_degrees(model: Model, ranks: int) -> list[int]:
    if not model.experts:
        return [1]
    return [ep for ep in divisors(model.experts.num_experts) if ranks % ep == 0]


def rank_orders(rows: Sequence[tuple[int, ...]], cluster: Cluster, features: Features, fixed: Fixed) -> dict[tuple[int, ...], list[int]]:
    """For every (tp, cp, pp, dp), indices of the rank orders that differ in where an axis lands."""
    distinct = sorted({(row[0], row[1], row[2], row[4]) for row in rows})
    allowed = [i for i, order in enumerate(ORDERS) if order in features.orders and fixed.allows("order", order)]
    base = np.array(distinct, dtype=np.int64).reshape(-1, 4)
    sizes = tier_sizes(cluster)
    seen: list[set[bytes]] = [set() for _ in distinct]
    kept: dict[tuple[int, ...], list[int]] = {key: [] for key in distinct}
    ones = np.ones(len(distinct), dtype=np.int64)
    for index in allowed:
        columns = (
            {f.name: ones for f in fields(Layouts)} | dict(zip(("tp", "cp", "pp", "dp"), base.T, strict=True)) | {"order": ones * index}
        )
        members = place(Layouts(**columns), sizes).members
        where = np.concatenate([members[axis] for axis in AXES]).T
        for i, key in enumerate(distinct):
            signature = where[i].tobytes()
            if signature not in seen[i]:
                seen[i].add(signature)
                kept[key].append(index)
    return kept


def batches(rows: Sequence[tuple[int, ...]], cluster: Cluster, features: Features, fixed: Fixed) -> Iterator[tuple[Layouts, int]]:
    """Batches of all legal layouts of these rows of degrees, in their order, each with the number of rows done before it."""
    orders = rank_orders(rows, cluster, features, fixed)
    grid = np.array(rows, dtype=np.int64).reshape(-1, 7)
    batch: list[Layouts] = []
    size, first = 0, 0
    for start in range(0, len(grid), STRIDE):
        part = _crossed(grid[start : start + STRIDE], orders, features, fixed)
        batch.append(part)
        size += len(part)
        if size >= ROWS:
            yield concatenated(batch), first
            batch, size, first = [], 0, start + STRIDE
    if batch:
        yield concatenated(batch), first


def bare(rows: Sequence[tuple[int, ...]], features: Features) -> Layouts:
    """One layout per row of degrees with the cheapest choices: what bounds all layouts of that row."""
    grid = np.array(rows, dtype=np.int64).reshape(-1, 7)
    ones = np.ones(len(grid), dtype=np.int64)
    columns = {f.name: ones * 0 for f in fields(Layouts)} | dict(
        zip(("tp", "cp", "pp", "vp", "dp", "ep", "micro_batch"), grid.T, strict=True)
    )
    columns |= {"zero_stage": ones, "overlap_tp": ones, "overlap_pp": ones, "overlap_dp": ones, "cuda_graphs": ones * features.cuda_graphs}
    return Layouts(**{**columns, "cp_kind": ones * CP_KINDS.index("all-gather")})


def _crossed(grid: Ints, orders: dict[tuple[int, ...], list[int]], features: Features, fixed: Fixed) -> Layouts:
    """Rows of degrees crossed with every choice that is legal for them."""
    picks = [[order for order in orders[(row[0], row[1], row[2], row[4])]] for row in grid.tolist()]
    repeats = np.array([len(pick) for pick in picks])
    rows, order = np.repeat(grid, repeats, axis=0), np.array([o for pick in picks for o in pick], dtype=np.int64)
    choices = _choices(features, fixed)
    n, k = len(rows), len(choices)
    wide, picked = np.repeat(rows, k, axis=0), np.tile(choices, (n, 1))
    tp, cp, pp, vp, dp, ep, size = wide.T
    zero, recompute, schedule, kind = picked.T
    # One name per thing: without cp there is one kind of it, without a pipeline one schedule, without replicas one ZeRO stage.
    legal = (cp > 1) | (kind == choices[:, 3].min())
    legal &= np.where(schedule == SCHEDULES.index("zero-bubble"), pp > 1, (schedule == SCHEDULES.index("interleaved")) == (vp > 1))
    legal &= (dp * cp > 1) | (zero == choices[:, 0].min())
    ones, flags = np.ones(n * k, dtype=np.int64), ("overlap_tp", "overlap_pp", "overlap_dp", "cuda_graphs")
    searched = {"zero_stage": zero, "recompute": recompute, "schedule": schedule, "cp_kind": kind, "order": np.repeat(order, k)}
    settings = {flag: ones * getattr(features, flag) for flag in flags} | {"first_stage_layers": ones * 0, "last_stage_layers": ones * 0}
    return Layouts(tp=tp, cp=cp, pp=pp, vp=vp, dp=dp, ep=ep, micro_batch=size, **searched, **settings).take(legal)


def _choices(features: Features, fixed: Fixed) -> Ints:
    """Every (ZeRO stage, recompute, schedule, kind of cp) as indices."""
    return np.array(
        [
            (zero, RECOMPUTE.index(recompute), SCHEDULES.index(schedule), CP_KINDS.index(kind))
            for zero in features.zero_stages
            if fixed.allows("zero_stage", zero)
            for recompute in features.recompute
            if fixed.allows("recompute", recompute)
            for schedule in features.schedules
            if fixed.allows("schedule", schedule)
            for kind in features.cp_kinds
            if fixed.allows("cp_kind", kind)
        ],
        dtype=np.int64,
    ).reshape(-1, 4)


def concatenated(batches: Sequence[Layouts]) -> Layouts:
    """Several batches of rows as one."""
    if len(batches) == 1:
        return batches[0]
    return Layouts(**{f.name: np.concatenate([getattr(batch, f.name) for batch in batches]) for f in fields(Layout)})
