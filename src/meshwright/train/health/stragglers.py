"""Detects slow ranks from the busy seconds of every rank (time not spent waiting for others), step by step.

Ranks of one pipeline stage do the same work, so each rank is compared with the median of the other ranks of its stage, step by step. A rank
is reported when, in one of several windows, the mean of the middle half of this log ratio minus several of its standard errors is above the
floor of the window, and every part of the window is slow. The standard error is the larger of two: that of independent steps, and that of
eight blocks of the window. If other programs take cores from ranks for many steps at a time, steps are not independent, and only the blocks
show this. A rank is also reported when it is clearly slower in three quarters of the steps of a window: noise that comes and goes, however
large, does not do this, and it hides a slow rank from the rule above.

A rank that is normal again is reported as recovered after a hundred steps. It is reported again only on a longer window than before, so
that a rank near the limit does not fill the log.

A rank that is alone on its stage is compared with its own first steps, minus the change of the other ranks since then. Such a rank is
reported when it *becomes* slower after its first hundred steps; one that was slow from the start is not detected. The first hundred steps
have jitter of their own, so a rank that becomes 10 % slower is detected if ranks jitter by 5 %, and often not if they jitter by 10 %.

How soon, on simulated steps; tests/train/health/test_stragglers.py checks these numbers. Normal ranks differ by 2 % for good and have
stalls of twice the time in 0.3 % of steps; their jitter is normal or heavy-tailed (Student's t with 3 degrees of freedom). Within 50 steps
a rank is reported in at least 99 of 100 runs if it is 10 % slower and ranks jitter by 3 %, or 30 % slower and ranks jitter by up to 10 %.
With jitter of 5 to 10 % a rank that is 10 % slower is reported within 300 steps in at least 19 of 20, half of them within 110; a rank that
is 4 % slower is never reported. In 10,000 steps without a slow rank no rank is reported. Ranks on shared cores, which are sometimes 1.2 to
2 times slower for some steps: a rank twice as slow is reported within 60 steps, and one that is 30 % slower within 150 steps, in at least
18 of 20 runs, and no other rank is; a rank that is 10 % slower is often not reported within 600 steps. In 8,000 steps without a slow rank
there are at most three reports, where a rule for independent steps makes dozens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meshwright.record.summary import MAD_TO_STD

FLOORS = {40: 1.04, 100: 1.04, 250: 1.04, 500: 1.04}  # window, in steps -> slowdown below which no rank is reported
STANDARD_ERRORS = 3.5
BLOCK_ERRORS = 4.0  # larger, because eight blocks give only a rough estimate of the spread
NUM_CHECKS = 10  # in the time of a window
RECOVERY_WINDOW = 100
AGAIN_WINDOW = 100  # steps of evidence, at least, to report a rank a second time
NUM_BLOCKS = 8  # of a window: their spread shows noise that lasts for many steps
LASTING = 0.5  # share of the floor that every block must exceed
SELDOM = 0.25  # share of the steps of a window in which a clearly slow rank may be faster
CLEAR = 1.12  # than this
NUM_HISTORY_STEPS = 100  # with which a rank alone on its stage is compared later
NUM_SKIPPED_STEPS = 3  # at the start: compilation, first use of memory
MIDDLE_ERROR = 1.0933  # standard error of the mean of the middle half in units of that of the mean, for normal noise
SHORTEST_S = 1e-9  # one tick of a clock: no rank is busy for less


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that was found to be slow, or normal again."""

    rank: int
    step: int
    slowdown: float  # its busy time divided by the others': 1.3 is 30 % more; below the floor for one that is normal again
    num_steps: int  # the window
    peers: tuple[int, ...]  # the ranks that it was compared with; empty: its own first steps
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
    """The detector. `groups` has the group of each rank: ranks of the same group do the same work.

    No slowdown below `floor` is reported.
    """

    def __init__(self, groups: Sequence[Hashable], floor: float = 1.0) -> None:
        self._floors = {window: max(least, floor) for window, least in FLOORS.items()}
        self._clear = CLEAR * max(self._floors.values()) / max(FLOORS.values())
        members: dict[Hashable, list[int]] = defaultdict(list)
        for rank, group in enumerate(groups):
            members[group].append(rank)
        self._shared = [np.array(ranks) for ranks in members.values() if len(ranks) > 1]
        self._alone = np.array([ranks[0] for ranks in members.values() if len(ranks) == 1], dtype=np.int64)
        self._peers = {rank: tuple(other for other in ranks if other != rank) for ranks in members.values() for rank in ranks}
        self._log_ratio = np.zeros((max(FLOORS), len(groups)))  # a ring buffer of steps
        self._history = np.zeros((NUM_HISTORY_STEPS, len(groups)))
        self._history_error = np.zeros(len(groups))  # of the log ratios of ranks that are compared with it
        self._num_steps = -NUM_SKIPPED_STEPS
        self._sound_since = np.zeros(len(groups), dtype=np.int64)  # earlier steps do not count: they were used before
        self._shortest = np.zeros(len(groups), dtype=np.int64)  # the shortest window on which a rank may be reported
        self.slow: dict[int, SlowRank] = {}

    def update(self, step: int, busy_s: ArrayLike) -> list[SlowRank]:
        """Add the busy seconds of one step, by rank; return the ranks that are found to be slow, or normal again."""
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

    @property
    def has_history(self) -> bool:
        """Whether ranks that are alone on their stage are compared with their own first steps by now."""
        return self._num_steps > NUM_HISTORY_STEPS

    def usual_ratios(self, num_steps: int) -> NDArray[np.float64]:
        """The logarithm of each rank's busy time divided by the expected one, over the last steps."""
        window = min(num_steps, self._num_steps - NUM_HISTORY_STEPS) if len(self._alone) else num_steps
        return _middle(self._last(window)) if window > 0 else np.zeros(self._log_ratio.shape[1])

    def _is_due(self, window: int) -> bool:
        return self._num_steps >= window and self._num_steps % (window // NUM_CHECKS) == 0

    def _ratios(self, log_busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of each rank's busy time divided by the expected time."""
        ratios = np.zeros_like(log_busy)
        for ranks in self._shared:
            ratios[ranks] = log_busy[ranks] - _median_of_others(log_busy[ranks])
        if len(self._alone):
            ratios[self._alone] = self._against_history(log_busy)[self._alone]
        return ratios

    def _against_history(self, log_busy: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log of each rank's busy time divided by its own early one, minus the same for the other ranks: a longer batch slows all ranks."""
        if self._num_steps <= NUM_HISTORY_STEPS:
            self._history[self._num_steps - 1] = log_busy
            if self._num_steps == NUM_HISTORY_STEPS:
                error = _middle_error(self._history)
                self._history_error[self._alone] = math.sqrt(2) * error[self._alone]  # the error of the rank, and as much for the others
            return np.zeros_like(log_busy)
        change = log_busy - np.median(self._history, axis=0)
        return change - _median_of_others(change) if len(change) > 1 else change

    def _last(self, window: int) -> NDArray[np.float64]:
        """The last `window` steps, in any order."""
        return self._log_ratio[np.arange(self._num_steps - window, self._num_steps) % len(self._log_ratio)]

    def _named(self, step: int, window: int) -> list[SlowRank]:
        last = self._last(window)
        middle = _middle(last)
        floor, clear = math.log(self._floors[window]), math.log(self._clear)
        is_slow = (middle > floor) & (self._sound_since <= self._num_steps - window) & (self._shortest <= window)
        if not is_slow.any():
            return []  # nearly always; the rest takes longer
        blocks = _block_medians(last)
        error = np.maximum(STANDARD_ERRORS * _middle_error(last), BLOCK_ERRORS * _block_error(blocks))
        sure = middle - np.hypot(error, STANDARD_ERRORS * self._history_error)
        is_clear = np.quantile(last, SELDOM, axis=0) - STANDARD_ERRORS * self._history_error > clear
        is_slow &= (sure > floor) | is_clear
        is_slow &= blocks.min(axis=0) > LASTING * np.where(sure > floor, floor, clear)
        ranks = [int(rank) for rank in np.flatnonzero(is_slow) if int(rank) not in self.slow]
        named = [SlowRank(rank, step, float(np.exp(middle[rank])), window, self._peers[rank]) for rank in ranks]
        self.slow.update({one.rank: one for one in named})
        self._shortest[ranks] = max(window, AGAIN_WINDOW)  # a rank that recovered is reported again only on more evidence
        return named

    def _recovered(self, step: int) -> list[SlowRank]:
        """The reported ranks whose last steps are below the lowest floor again."""
        if not self.slow or not self._is_due(RECOVERY_WINDOW):
            return []
        median = np.exp(np.median(self._last(RECOVERY_WINDOW), axis=0))
        sound = [rank for rank in self.slow if median[rank] < min(self._floors.values()) and step - self.slow[rank].step >= RECOVERY_WINDOW]
        for rank in sound:
            del self.slow[rank]
            self._sound_since[rank] = self._num_steps
            self._shortest[rank] = min((window for window in FLOORS if window > self._shortest[rank]), default=max(FLOORS))
        return [SlowRank(rank, step, float(median[rank]), RECOVERY_WINDOW, self._peers[rank], recovered=True) for rank in sound]


def _middle(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of the middle half of each column: stalls do not move it, and it varies less than the median."""
    quarter = len(values) // 4
    return np.asarray(np.sort(values, axis=0)[quarter : len(values) - quarter].mean(axis=0))


def _middle_error(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard error of `_middle` of each column if steps are independent, from the median absolute deviation."""
    spread = MAD_TO_STD * np.median(np.abs(values - np.median(values, axis=0)), axis=0)
    return np.asarray(MIDDLE_ERROR * spread / math.sqrt(len(values)))


def _block_medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Medians of each column over consecutive blocks of its steps, in order."""
    num_blocks = min(NUM_BLOCKS, len(values) // 5)
    return np.stack([np.median(block, axis=0) for block in np.array_split(values, num_blocks)])


def _block_error(blocks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Standard error of each column's median if steps are not independent, from the spread of blocks.

    Never below that of the usual rank.
    """
    spread = blocks.std(axis=0, ddof=1)
    return np.asarray(np.maximum(spread, np.median(spread)) / math.sqrt(len(blocks)))


def _median_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each entry, the median of all others, by one sort: leaving out an entry moves the median by at most one place."""
    order = np.argsort(values)
    ordered = values[order]
    num_others = len(values) - 1
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.arange(len(values))
    low, high = (num_others - 1) // 2, num_others // 2
    return np.asarray((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)
