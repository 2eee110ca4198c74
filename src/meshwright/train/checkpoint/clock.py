"""When a run without `--checkpoint-every` saves: soon after its start, then at the interval that loses the least time."""

from __future__ import annotations

import time
from collections.abc import Callable

from meshwright.cost.checkpoints import best_interval_s
from meshwright.train.checkpoint.saver import SaveReport
from meshwright.units import HOUR

FIRST_S = 30.0  # so that a run that is killed early loses at most half of its work
LONGEST_S = 600.0  # assumption: people stop and restart their runs more often than machines break
MOST_SHARE = 0.01  # share of the time that saving may take
# Assumption: as often as on the machine that trained Llama 3. describe/catalogue/failures.toml has its counts by cause, with their source.
INTERRUPTIONS_PER_ACCELERATOR_HOUR = 2e-5


class SaveClock:
    """Whether a checkpoint is due, by the clock of one rank. The other ranks learn it with the sum of the step."""

    def __init__(self, num_ranks: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self.between_s = HOUR / (INTERRUPTIONS_PER_ACCELERATOR_HOUR * num_ranks)
        self.save_s = 0.0  # the longest save so far: training stood still, and the disk was busy
        self._now_s = now_s
        self._begun_s = self._last_s = now_s()

    @property
    def interval_s(self) -> float:
        """Seconds between two saves, after the first ones."""
        advised_s = float(best_interval_s(self.save_s, self.between_s)) if self.save_s else LONGEST_S
        return max(min(advised_s, LONGEST_S), FIRST_S, self.save_s / MOST_SHARE)

    def is_due(self) -> bool:
        """Whether it is time to save: the run is twice as old as at its last save, or an interval has passed."""
        so_far_s = max(self._last_s - self._begun_s, FIRST_S, self.save_s / MOST_SHARE)
        return self._now_s() - self._last_s >= min(self.interval_s, so_far_s)

    def saved(self) -> None:
        """Note that a save has begun."""
        self._last_s = self._now_s()

    def saw(self, report: SaveReport) -> None:
        """Update how long a save takes."""
        self.save_s = max(self.save_s, report.stall_s + report.write_s)
