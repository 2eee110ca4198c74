"""Experts that get no token for many steps: they are not trained any more, and cost memory for nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.train.parallel.balance import Routing

DEAD_AFTER = 100  # steps without a token
MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class DeadExperts:
    """Experts of one layer that have had no token for `DEAD_AFTER` steps."""

    step: int
    layer: int
    experts: tuple[int, ...]

    def __str__(self) -> str:
        named = ", ".join(map(str, self.experts[:MOST_NAMED])) + (
            f" and {len(self.experts) - MOST_NAMED} more" if len(self.experts) > MOST_NAMED else ""
        )
        which = f"expert{'s' if len(self.experts) > 1 else ''} {named} of layer {self.layer}"
        advice = "a larger balance loss or bias rate may give them some"
        return f"{which} had no token in the {DEAD_AFTER} steps up to step {self.step}; {advice}"


class IdleExperts:
    """Counts the steps since each expert last had a token. All ranks give it the same loads."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, int], int] = defaultdict(int)  # by layer and expert

    def update(self, step: int, routing: Sequence[Routing]) -> list[DeadExperts]:
        """Add the loads of a step; return the experts whose idle time has just become too long, layer by layer."""
        found = []
        for layer in routing:
            dead = []
            for expert, load in enumerate(layer.loads):
                key = layer.layer, expert
                self._idle[key] = 0 if load else self._idle[key] + 1
                if self._idle[key] == DEAD_AFTER:
                    dead.append(expert)
            if dead:
                found.append(DeadExperts(step, layer.layer, tuple(dead)))
        return found
