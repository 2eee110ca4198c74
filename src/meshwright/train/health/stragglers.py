"""Which ranks are slow: fed once a step with every rank's busy seconds (time not spent waiting for others), names those that lag.

Ranks of one pipeline stage do the same work, so each is compared with the median of the others of its stage, step by step. A rank is
named when, over one of several windows, the median of that log ratio less `STANDARD_ERRORS` of its standard errors lies above the window's
floor. Medians over 25 steps and more do not see single stalls; the floors, lower for longer windows, leave lasting small differences
between sound machines alone.

A rank that is alone on its stage has nobody to be compared with. It is compared with its own first steps, less what the other ranks'
times did meanwhile: such a rank is named when it *becomes* slower after its first hundred steps, and one that was slow from the start is
not seen. Those hundred steps are known no better than their own jitter allows, so a rank alone that gets 10 % slower is named where ranks
jitter by 5 %, and often not where they jitter by 10 % (13 of 40 runs with normal noise, within 600 steps).

How soon, on synthetic steps whose ranks jitter by 5 to 10 %, normal or heavy-tailed (Student's t with 3 degrees of freedom), with stalls
of twice the time in 0.3 % of steps and lasting differences of 2 % between sound ranks; tests/train/health/test_stragglers.py holds these:
a rank 30 % slower is named within 50 steps in at least 99 of 100 runs (half of them within 28); a rank 10 % slower usually after 100 to 250
steps, within 600 in at least 19 of 20 runs; a rank 5 % slower may never be. In 10,000 steps without a slow rank nobody is named.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.record.summary import MAD_TO_STD

FLOORS = {25: 1.15, 40: 1.08, 100: 1.07, 250: 1.05, 500: 1.04}  # window, in steps -> slowdown below which nobody is named
STANDARD_ERRORS = 3.5
NUM_CHECKS = 5  # in the time of a window
RECOVERY_WINDOW = 50
NUM_HISTORY_STEPS = 100  # that a rank alone on its stage is later compared with
NUM_SKIPPED_STEPS = 3  # at the start: compilation, first touches
MEDIAN_ERROR = math.sqrt(math.pi / 2)  # standard error of a median, in those of a mean, normal noise
SHORTEST_S = 1e-9  # a clock's tick: no rank is busy for less


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank found slow, or sound again."""

    rank: int
    step: int
    slowdown: float  # its busy time against the others', 1.3: 30 % more; below the floor for one that is sound again
    num_steps: int  # the window
    peers: tuple[int, ...]  # whom it was compared with; empty: its own history
    recovered: bool = False

    def __str__(self) -> str:
        against = f"than {_ranks(self.peers)}, which do the same work" if self.peers else "than it was itself (no other rank does its work)"
        if self.recovered:
            return f"rank {self.rank} is no longer slow: {100 * (self.slowdown - 1):+.0f} % over {self.num_steps} steps"
        return f"rank {self.rank} is {100 * (self.slowdown - 1):.0f} % slower {against}, over {self.num_steps} steps"


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {listed}"


class Stragglers:
    """The detector. `groups` holds each rank's group: ranks of the same group do the same work."""

    def __init__(self, groups: Sequence[Hashable]) -> None:
        members: dict[Hashable, list[int]] = defaultdict(list)
        for rank, group in enumerate(groups):
            members[group].append(rank)
        self._shared = [np.array(ranks) for ranks in members.values() if len(ranks) > 1]
        self._alone = np.array([ranks[0] for ranks in members.values() if len(ranks) == 1], dtype=np.int64)
        self._peers = {rank: tuple(other for other in ranks if other != rank) for ranks in members.values() for rank in ranks}
        self._log_ratio = np.zeros((max(FLOORS), len(groups)))  # a ring of steps
        self._history = np.zeros((NUM_HISTORY_STEPS, len(groups)))
        self._history_error = np.zeros(len(groups))  # of the log ratios of ranks that are compared with it
        self._num_steps = -NUM_SKIPPED_STEPS
        self._sound_since = np.zeros(len(groups), dtype=np.int64)  # steps before this do not count: they were judged
        self.slow: dict[int, SlowRank] = {}

    def update(self, step: int, busy_s: ArrayLike) -> list[SlowRank]:
        """Take in one step's busy seconds, by rank; return the ranks that turned out slow, or sound again, with it."""
        busy = np.asarray(busy_s, dtype=np.float64)
        if busy.shape != self._log_ratio.shape[1:] or not np.isfinite(busy).all():
            raise ValueError(f"busy seconds of step {step} are {busy}, not a finite number for each of {self._log_ratio.shape[1]} ranks")
        log_busy = np.log(np.maximum(busy, SHORTEST_S))
        self._num_steps += 1
        if self._num_steps <= 0:
            return []
        self._log_ratio[(self._num_steps - 1) % len(self._log_ratio)] = self._ratios(log_busy)
        found = [one for window in FLOORS if self._is_due(window) for one in self._named(step, window)]
        return found + self._recovered(step)

    def _is_due(self, window: int) -> bool:
        return self._num_steps >= window and self._num_steps % (window // NUM_CHECKS) == 0

    def _ratios(self, log_busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of each rank's busy time over what it should be."""
        ratios = np.zeros_like(log_busy)
        for ranks in self._shared:
            ratios[ranks] = log_busy[ranks] - _median_of_others(log_busy[ranks])
        if len(self._alone):
            ratios[self._alone] = self._against_history(log_busy)[self._alone]
        return ratios

    def _against_history(self, log_busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of each rank's busy time over its own early one, less the same of the others: a longer batch is nobody's fault."""
        if self._num_steps <= NUM_HISTORY_STEPS:
            self._history[self._num_steps - 1] = log_busy
            if self._num_steps == NUM_HISTORY_STEPS:
                error = _median_error(self._history, np.median(self._history, axis=0))
                self._history_error[self._alone] = math.sqrt(2) * error[self._alone]  # the rank's, and as much for the others'
            return np.zeros_like(log_busy)
        change = log_busy - np.median(self._history, axis=0)
        return change - _median_of_others(change) if len(change) > 1 else change

    def _last(self, window: int) -> NDArray[np.float64]:
        """The last `window` steps, in no order."""
        return self._log_ratio[np.arange(self._num_steps - window, self._num_steps) % len(self._log_ratio)]

    def _named(self, step: int, window: int) -> list[SlowRank]:
        last = self._last(window)
        median = np.median(last, axis=0)
        error = np.hypot(_median_error(last, median), self._history_error)
        sure = median - STANDARD_ERRORS * error
        is_slow = (sure > math.log(FLOORS[window])) & (self._sound_since <= self._num_steps - window)
        ranks = [int(rank) for rank in np.flatnonzero(is_slow) if int(rank) not in self.slow]
        named = [SlowRank(rank, step, float(np.exp(median[rank])), window, self._peers[rank]) for rank in ranks]
        self.slow.update({one.rank: one for one in named})
        return named

    def _recovered(self, step: int) -> list[SlowRank]:
        """The named ranks whose last steps are below the lowest floor again."""
        if not self.slow or not self._is_due(RECOVERY_WINDOW):
            return []
        median = np.exp(np.median(self._last(RECOVERY_WINDOW), axis=0))
        sound = [rank for rank in self.slow if median[rank] < min(FLOORS.values()) and step - self.slow[rank].step >= RECOVERY_WINDOW]
        for rank in sound:
            del self.slow[rank]
            self._sound_since[rank] = self._num_steps
        return [SlowRank(rank, step, float(median[rank]), RECOVERY_WINDOW, self._peers[rank], recovered=True) for rank in sound]


def _median_error(values: NDArray[np.float64], median: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard error of each column's median, from the median absolute deviation."""
    spread = MAD_TO_STD * np.median(np.abs(values - median), axis=0)
    return np.asarray(MEDIAN_ERROR * spread / math.sqrt(len(values)))


def _median_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each entry, the median of all the others, by one sort: leaving out an entry moves the middle by at most one place."""
    order = np.argsort(values)
    ordered = values[order]
    num_others = len(values) - 1
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values))
    low, high = (num_others - 1) // 2, num_others // 2
    return np.asarray((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)
