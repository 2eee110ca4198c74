"""What this rank does, or which ranks it waits for. Writing it is so cheap that every collective can do it."""

from __future__ import annotations

from collections.abc import Sequence


class Marks:
    """The present position of the rank in the step.

    The main thread writes, and the watchdog's thread reads; each attribute is set in one operation.
    """

    __slots__ = ("doing", "num_moves", "step", "waits")

    def __init__(self) -> None:
        self.doing = "starting"
        self.waits: tuple[str, str, Sequence[int]] | None = None  # collective, axis, ranks
        self.step = 0
        self.num_moves = 0

    def do(self, what: str) -> None:
        """Note what is computed now."""
        self.doing = what
        self._move()

    def enter(self, what: str, axis: str, ranks: Sequence[int]) -> None:
        """Note that the rank waits for a collective of `axis` with `ranks`."""
        self.waits = (what, axis, ranks)
        self._move()

    def leave(self) -> None:
        """Note that the wait is over."""
        self.waits = None
        self._move()

    def _move(self) -> None:
        self.num_moves += 1
