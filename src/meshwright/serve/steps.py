"""Steps as growing columns, which can be thinned to what a screen can show."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.record.entries import LONGEST_S, PARTS, STEP_FIELDS, StepRecord
from meshwright.record.lines import object_in

PART_FIELDS = tuple(f"{part}_s" for part in PARTS)
EXTRA = ("tokens_per_s", "learning_rate", "slowest_replica")
ROUTERS = ("expert_peak", "router_entropy", "balance_loss")  # of a run with experts
FIELDS = (*STEP_FIELDS, *PART_FIELDS, *EXTRA, *ROUTERS)
DRAWN = ("samples", "loss", "grad_norm", "step_s", *PART_FIELDS, *ROUTERS)  # means over a bucket
NUM_POINTS = 2000  # the largest number of buckets, and more than half of it is used: about the pixels of a wide screen

_NUMBERS = {int, float, type(None)}

Column = NDArray[np.float64]


class Steps:
    """The steps of a run so far, one column per field; nan if a step does not have the field."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in FIELDS}
        self.passed_s = array("d")  # seconds of all steps up to each one

    def __len__(self) -> int:
        return len(self.columns["step"])

    def add(self, line: bytes) -> None:
        """Add one line; ValueError or InputError says why it cannot be added."""
        entry = object_in(line)
        if not _is_plain(entry):
            entry = StepRecord.from_json(entry).to_json()
        if len(self) and entry["step"] <= self.columns["step"][-1]:
            raise ValueError(f"step {entry['step']} follows step {self.columns['step'][-1]:.0f}")
        for name, column in self.columns.items():
            value = entry.get(name)
            column.append(math.nan if value is None else value)
        self.passed_s.append(entry["step_s"] + (self.passed_s[-1] if self.passed_s else 0.0))

    @property
    def total_s(self) -> float:
        """Seconds of all steps so far."""
        return self.passed_s[-1] if self.passed_s else 0.0

    def column(self, name: str, low: int = 0, high: int | None = None) -> Column:
        """One column, or some rows of it; a `low` below 0 counts from the end."""
        return np.array(self.columns[name][low:high], dtype=np.float64)

    def last(self, name: str) -> float:
        """The newest value of a column; nan if there is none."""
        values = self.columns[name]
        return values[-1] if values else math.nan

    def thinned(self, *, after: int = 0, bucket: int = 0, points: int = NUM_POINTS, names: Sequence[str] = DRAWN) -> dict[str, Any]:
        """The steps after row `after` for a client whose buckets hold `bucket` rows, or all steps if the buckets have grown since.

        The number of rows in a bucket is a power of two, counted from the first row, so that new steps change only the last bucket.
        A client keeps its first `from` buckets and appends the new ones.
        """
        num_rows = len(self)
        size = bucket_rows(num_rows, points)
        first = after // size * size if size == bucket and 0 <= after <= num_rows else 0
        return {**self._buckets(first, num_rows, size, names), "from": first // size}

    def between(self, first_step: int, last_step: int, points: int = NUM_POINTS, names: Sequence[str] = DRAWN) -> dict[str, Any]:
        """The steps from one to another, in at most `points` buckets."""
        low, high = (bisect_left(self.columns["step"], step) for step in (first_step, last_step + 1))
        return {**self._buckets(low, high, bucket_rows(high - low, points), names), "from": 0}

    def _buckets(self, low: int, high: int, size: int, names: Sequence[str]) -> dict[str, Any]:
        edges = np.arange(low, high, size)
        ends = np.append(edges[1:], high)[: len(edges)] - 1
        shown: dict[str, list[float | None]] = {"step": sendable(self.columns["step"][end] for end in ends.tolist())}
        for name in names:
            values = self.column(name, low, high)
            if not np.isnan(values).all():
                shown[name] = sendable(mean_of_known(values, edges - low))
        times_s = self.column("step_s", low, high)
        if len(edges):
            shown["passed_s"] = sendable(self.passed_s[end] for end in ends.tolist())
            shown["shortest_s"] = sendable(np.minimum.reduceat(times_s, edges - low))
            shown["longest_s"] = sendable(np.maximum.reduceat(times_s, edges - low))
        return {"bucket": size, "rows": len(self), "columns": shown}


def _is_plain(entry: Mapping[str, Any]) -> bool:
    """Whether a line is certainly valid: only numbers, with positive seconds. Most lines are, and skip the slower check by `StepRecord`."""
    if not {type(value) for value in entry.values()} <= _NUMBERS:
        return False
    seconds = [entry.get(name, 0.0) for name in ("step_s", *PART_FIELDS)]
    counts = (entry.get("step"), entry.get("samples"))
    if "step_s" not in entry or None in seconds or not all(type(value) is int and 0 <= value < 2**53 for value in counts):
        return False
    try:
        return min(seconds) >= 0 and max(seconds) <= LONGEST_S and all(map(math.isfinite, filter(None, entry.values())))
    except OverflowError:  # an integer too large for a float
        return False


def bucket_rows(num_rows: int, points: int) -> int:
    """Rows in a bucket: the smallest power of two that gives no more than `points` buckets."""
    return next(1 << power for power in count() if num_rows <= points << power)


def mean_of_known(values: Column, edges: NDArray[np.int64]) -> Column:
    """Mean of the numbers in each stretch that begins at an edge; nan if a stretch has no number."""
    if not len(edges):
        return np.empty(0)
    known = np.isfinite(values)
    total = np.add.reduceat(np.where(known, values, 0.0), edges)
    number = np.add.reduceat(known.astype(np.float64), edges)
    return np.asarray(np.divide(total, number, out=np.full(len(edges), math.nan), where=number > 0))


def sendable(values: Iterable[float]) -> list[float | None]:
    """Numbers to seven digits in a form that JSON allows: None for NaN and infinity."""
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values]
