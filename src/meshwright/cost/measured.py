"""Times from measurements of a machine: rates of measured shapes, interpolated to other shapes in log space.

Every shape may be a number or an array; they broadcast. A shape that was timed gets exactly its measured time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
NEAR = 1e-3  # squared distance in log space below which shapes count the same
REACH = 4.0  # power of the distance by which the weight of distant shapes falls
APART = 0.2  # of the largest, by which points must differ for a line through them: closer together, noise would turn it
LOSS_BYTES = 16.0  # a logit, both ways: written by the product, read and written by the loss, read by two products


@dataclass(frozen=True, slots=True)
class Placed:
    """Times of one kind of collective in groups that are placed in one way on the tiers of a network."""

    members: tuple[int, ...]  # of a group in one domain of each tier, from the inside out
    sizes: Column  # bytes, rising
    seconds: Column
    core_s: Column | None = None  # of a core's work in each process; None: not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one machine in one number format."""

    products: Mapping[str, tuple[Column, Column]]  # by way: shapes [(rows, columns, inner), points], FLOP/s
    attention: tuple[
        tuple[Column, Column], tuple[Column, Column]
    ]  # forward, backward: [(sequences x heads, tokens, width), points], FLOP/s
    elementwise_bytes_per_s: float
    loss_bytes_per_s: float
    cast_bytes: float  # of one element of a product's input
    grouped: Mapping[str, tuple[Column, Column]] = field(default_factory=dict)  # by way: [(groups, rows, columns, inner), points], FLOP/s
    made_bytes_per_s: Mapping[str, float] = field(default_factory=dict)  # by base: codes of few bits read, and weights written
    collectives: Mapping[str, tuple[Column, Column]] = field(default_factory=dict)  # by kind: [(ranks, bytes), points], seconds
    placed: Mapping[str, tuple[Placed, ...]] = field(default_factory=dict)  # by kind: between hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """From seconds composed of kernels to measured seconds: `fixed_s + factor x seconds`."""

    factor: float = 1.0
    fixed_s: float = 0.0

    def of(self, composed_s: Any) -> float:
        """The corrected seconds."""
        return self.fixed_s + self.factor * float(composed_s)

    @staticmethod
    def through(composed_s: Any, seen_s: Any) -> Correction:
        """The line through two or more points; through the origin if there is one, if they are close together, or if the line would give
        negative prices."""
        composed, seen = np.asarray(composed_s, dtype=np.float64), np.asarray(seen_s, dtype=np.float64)
        in_proportion = Correction(factor=float(np.exp(np.mean(np.log(seen / composed)))))
        if len(composed) < 2 or np.ptp(composed) < APART * composed.max():
            return in_proportion
        factor, fixed_s = np.polyfit(composed, seen, 1, w=1 / seen)
        if factor <= 0 or fixed_s < 0:
            return in_proportion
        return Correction(factor=float(factor), fixed_s=float(fixed_s))


def rate_near(wanted: Column, timed: Column, rates: Column) -> Column:
    """Rates at `wanted` points, [features, n], from those `timed`, [features, points]: a weighted mean of logarithms.

    Rates of large products and of attention change slowly with their sides, so their logarithms are averaged over measured shapes, with
    weights that fall with the fourth power of the distance between logarithms.
    """
    gaps = np.log(wanted)[:, :, None] - np.log(timed)[:, None, :]
    squared = np.sum(gaps**2, axis=0)
    weights = 1.0 / (squared + NEAR) ** (REACH / 2)
    exact = squared < 1e-12
    weights = np.where(exact.any(axis=1, keepdims=True), exact, weights)
    return np.asarray(np.exp(np.sum(weights * np.log(rates), axis=1) / np.sum(weights, axis=1)))


def work_s(amount: Any, shape: tuple[Any, ...], timed: Column, rates: Column) -> Column:
    """Seconds of `amount` of work at a `shape` of broadcasting features, from the rates of shapes that were timed.

    Equal shapes are looked up once. A shape with a side of 0 takes no time.
    """
    columns = np.broadcast_arrays(amount, *shape)
    flat = np.stack([np.ravel(column).astype(np.float64) for column in columns[1:]])
    some = np.all(flat > 0, axis=0)
    found = np.ones(flat.shape[1])
    if some.any():
        unique, inverse = np.unique(flat[:, some], axis=1, return_inverse=True)
        found[some] = rate_near(unique, timed, rates)[np.ravel(inverse)]
    return np.asarray(np.where(some.reshape(columns[0].shape), columns[0] / found.reshape(columns[0].shape), 0.0))


def exchange_s(payload_bytes: Any, num_ranks: Any, timed: Column, seconds: Column) -> Column:
    """Seconds of a collective of so many bytes over so many ranks; `timed` is [(ranks, bytes), points].

    For a timed number of ranks, straight lines between sizes in logarithms are used; below the smallest size its time, above the largest in
    proportion. Other numbers of ranks use the nearest timed one, in proportion to the number of ranks minus one.
    """
    payload, ranks = np.broadcast_arrays(np.asarray(payload_bytes, dtype=np.float64), np.asarray(num_ranks, dtype=np.float64))
    groups = np.unique(timed[0])
    nearest = groups[np.argmin(np.abs(np.log(np.maximum(ranks, 1.0))[..., None] - np.log(groups)), axis=-1)]
    result = np.zeros(payload.shape)
    for group in groups:
        of_group = timed[0] == group
        order = np.argsort(timed[1][of_group])
        each = _between_sizes(payload, timed[1][of_group][order], seconds[of_group][order])
        result = np.where(nearest == group, each * (ranks - 1) / (group - 1), result)
    return np.where((ranks > 1) & (payload > 0), result, 0.0)


def _between_sizes(payload: Column, sizes: Column, seconds: Column) -> Column:
    """Seconds on straight lines between sizes in logarithms; below the smallest size its time, above the largest in proportion."""
    each = np.exp(np.interp(np.log(np.maximum(payload, 1.0)), np.log(sizes), np.log(seconds)))
    return np.asarray(each * np.maximum(payload / sizes[-1], 1.0))


def placed_exchange_s(payload_bytes: Any, members: Column, timed: Sequence[Placed]) -> Column:
    """Seconds of a collective in groups with so many `members` in one domain of each tier, [tiers, layouts].

    A placement that was not timed takes the nearest that was, by the logarithms of its members, in proportion to the ranks minus one.
    """
    return _placed(payload_bytes, members, timed, [one.seconds for one in timed])


def placed_core_s(payload_bytes: Any, members: Column, timed: Sequence[Placed]) -> Column:
    """The same for the seconds of a core's work in each process; 0 where they were not counted."""
    return _placed(payload_bytes, members, timed, [one.core_s for one in timed])


def _placed(payload_bytes: Any, members: Column, timed: Sequence[Placed], values: Sequence[Column | None]) -> Column:
    ranks = members[-1]
    payload, _ = np.broadcast_arrays(np.asarray(payload_bytes, dtype=np.float64), ranks)
    logs = np.log(members)
    gaps = np.stack([np.sum(np.abs(logs - np.log(np.array(one.members, dtype=np.float64))[:, None]), axis=0) for one in timed])
    nearest, result = np.argmin(gaps, axis=0), np.zeros(payload.shape)
    for i, (one, seconds) in enumerate(zip(timed, values, strict=True)):
        if seconds is not None:
            each = _between_sizes(payload, one.sizes, seconds) * (ranks - 1) / (one.members[-1] - 1)
            result = np.where(nearest == i, each, result)
    return np.where((ranks > 1) & (payload > 0), result, 0.0)


def tensor_exchange_s(payload_bytes: Any, tp: Any, rates: Rates) -> Column:
    """Seconds of tensor parallelism in one direction of a layer if the trainer waits for it: two gathers and two scatters."""
    kinds = ("all-gather", "reduce-scatter")
    return np.asarray(2 * sum(exchange_s(payload_bytes, tp, *rates.collectives[kind]) for kind in kinds))


def product_s(rows: Any, columns: Any, inner: Any, rates: Rates) -> tuple[Column, Column, Column]:
    """Seconds of a product, of the gradient of its input and of that of its weight."""
    flops = 2.0 * np.asarray(rows) * columns * inner
    forward, given, weight = (work_s(flops, (rows, columns, inner), *rates.products[way]) for way in ("forward", "input", "weight"))
    return forward, given, weight


def grouped_s(num_groups: Any, rows: Any, columns: Any, inner: Any, rates: Rates) -> tuple[Column, Column, Column]:
    """The same of a grouped product: so many rows in all, each with the matrix of its group."""
    flops = 2.0 * np.asarray(rows) * columns * inner
    sides = (num_groups, rows, columns, inner)
    forward, given, weight = (work_s(flops, sides, *rates.grouped[way]) for way in ("forward", "input", "weight"))
    return forward, given, weight


def ends_time(
    hidden: Any, vocab_size: Any, rows: Any, block_rows: Any, tp: Any, rates: Rates, *, trained: bool = True
) -> tuple[Column, Column]:
    """Seconds of the output projection, which may be frozen, and the loss, forward and backward, block of rows by block of rows."""
    block = np.minimum(rows, block_rows)
    columns = np.ceil(np.asarray(vocab_size) / np.asarray(tp))  # with padding, where the vocabulary does not divide
    forward, given, weight = product_s(block, columns, hidden, rates)
    loss_s = np.asarray(rows) * columns * LOSS_BYTES / 2 / rates.loss_bytes_per_s
    blocks = np.asarray(rows) / block
    return np.asarray(forward * blocks + loss_s), np.asarray((given + weight * trained) * blocks + loss_s)
