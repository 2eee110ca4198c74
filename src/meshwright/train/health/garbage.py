"""Python's search for garbage, at fixed places of a run.

Left to itself it stops a rank for milliseconds, and now and then for tenths of a second, each rank at another time, while all others wait.
Here all ranks search after the same steps, when a GPU has its update to do, and never through what was there before the first one.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Self

SETTLED = 3  # steps after which nothing is compiled any more
EVERY = 100  # steps from one search through all that a run has made to the next; what a step leaves is searched after each


class Garbage:
    """Who searches while this is entered. `compiles`: the first steps leave a compiler's objects behind, which stay to the end."""

    def __init__(self, *, compiles: bool) -> None:
        self.compiles = compiles
        self._num_steps = 0
        self._was_enabled = False

    def __enter__(self) -> Self:
        self._was_enabled = gc.isenabled()
        gc.disable()
        gc.freeze()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        gc.unfreeze()
        if self._was_enabled:
            gc.enable()

    def step(self) -> None:
        """A step is over."""
        self._num_steps += 1
        if self.compiles and self._num_steps == SETTLED:
            gc.collect()
            gc.freeze()
        else:
            gc.collect(2 if self._num_steps % EVERY == 0 else 0)
