"""Python's garbage collection, at fixed steps of a run.

By default Python collects garbage at any time, on each rank at another time. This stops a rank for milliseconds, sometimes for tenths of a
second, while all others wait. Here all ranks collect after the same steps, while a GPU still works on its update. Once the first steps are
over, what is there stays to the end, and is searched no more.
"""

from __future__ import annotations

import gc
from types import TracebackType
from typing import Self

SETTLED = 3  # applied steps after which nothing more is compiled, and nothing needs the replica of the generation before (`Carry.settled`)
EVERY = 100  # steps between two searches of all objects; new objects are searched after each step


class Garbage:
    """Collects garbage at fixed steps while entered."""

    def __init__(self) -> None:
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

    def step(self, *, is_applied: bool = True) -> bool:
        """Call this after each step; whether the first steps have ended with it.

        A step that was not applied leaves all as it was: what the first ones need is still needed.
        """
        if not is_applied:
            gc.collect(0)
            return False
        self._num_steps += 1
        if self._num_steps == SETTLED:
            gc.unfreeze()  # a replica refers to itself: that of the generation before is freed here, with its state and its groups
            gc.collect()
            gc.freeze()
        else:
            gc.collect(2 if self._num_steps % EVERY == 0 else 0)
        return self._num_steps == SETTLED
