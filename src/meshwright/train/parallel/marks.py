"""Where this rank is: what it does or whom it waits for, written so cheaply that every collective can say it."""

from __future__ import annotations

from collections.abc import Sequence


class Marks:
    """The rank's present place in the step. The main thread writes, the watchdog's thread reads; single attributes are set whole."""

    __slots__ = ("doing", "num_moves", "step", "waits")

    def __init__(self) -> None:
        self.doing = "starting"
        self.waits: tuple[str, str, Sequence[int]] | None = None  # collective, axis, ranks
        self.step = 0
        self.num_moves = 0

    def do(self, what: str) -> None:
        """Say what is computed now."""
        self.doing = what
        self._move()

    def enter(self, what: str, axis: str, ranks: Sequence[int]) -> None:
        """Say that a collective of `axis` with `ranks` is waited for."""
        self.waits = (what, axis, ranks)
        self._move()

    def leave(self) -> None:
        """Say that the wait is over."""
        self.waits = None
        self._move()

    def _move(self) -> None:
        self.num_moves += 1
