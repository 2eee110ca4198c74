"""Every rank's busy time over the last steps, written to the run folder as `ranks.json` for the live page."""

from __future__ import annotations

import json
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshwright.files import replace_file

WINDOW = 50  # steps over which medians are computed
EVERY_S = 5.0  # between two writes


class RankTimes:
    """The busy seconds of the last steps by rank, written to a file every few seconds."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ranks.json"
        self._recent: deque[NDArray[np.float64]] = deque(maxlen=WINDOW)
        self._written_s = time.monotonic()

    def update(self, step: int, busy_s: NDArray[np.float64]) -> None:
        """Add one step, and write the file if it is due."""
        self._recent.append(busy_s)
        if time.monotonic() - self._written_s >= EVERY_S:
            self.write(step)
            self._written_s = time.monotonic()

    def write(self, step: int) -> None:
        """Write the medians. If the disk is full, the run is stopped when its steps are written, not here."""
        median_s = np.median(np.stack(self._recent), axis=0)
        content = {"step": step, "num_steps": len(self._recent), "busy_s": [float(f"{value:.5g}") for value in median_s]}
        with suppress(OSError):
            replace_file(self.path, (json.dumps(content) + "\n").encode(), ".ranks.json.new")
