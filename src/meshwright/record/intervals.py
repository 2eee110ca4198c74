"""Unions of time intervals: how long they are, and how much of other intervals they cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """Intervals that neither overlap nor touch, in their order."""

    start: Column
    end: Column

    @staticmethod
    def of(start: Column, end: Column) -> Union:
        """The union of any intervals, nested and overlapping ones too."""
        if not len(start):
            return Union(np.empty(0), np.empty(0))
        order = np.argsort(start, kind="stable")
        start, reached = start[order], np.maximum.accumulate(end[order])
        opens = np.concatenate(([True], start[1:] > reached[:-1]))
        closes = np.concatenate((opens[1:], [True]))
        return Union(start[opens], reached[closes])

    @property
    def length(self) -> float:
        """Time that at least one interval covers."""
        return float(np.sum(self.end - self.start))

    def before(self, at: Column) -> Column:
        """Covered time before each of `at`."""
        if not len(self.start):
            return np.zeros(len(at))
        whole = np.concatenate(([0.0], np.cumsum(self.end - self.start)))
        index = np.searchsorted(self.start, at, side="right")
        into_last = np.where(index > 0, self.end[index - 1] - np.minimum(at, self.end[index - 1]), 0.0)
        return np.asarray(whole[index] - into_last)

    def covers(self, start: Column, end: Column) -> Column:
        """For each given interval, how much of its time this union covers."""
        return self.before(end) - self.before(start)

    def overlap(self, other: Union) -> float:
        """Time that both unions cover."""
        return float(np.sum(self.covers(other.start, other.end)))
