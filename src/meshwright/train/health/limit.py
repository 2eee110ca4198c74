"""The budget of a run while it trains: whether another step would exceed it.

Only rank 0 looks at the clock; the other ranks learn its decision with the sum of the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from decimal import Decimal

from meshwright.ledger import Budget
from meshwright.train.checkpoint import SaveReport


class Limit:
    """The time at which a budget is spent; infinite on other ranks and in runs without a budget."""

    def __init__(self, budget: Budget | None = None, begun_s: float = 0.0, step_s: float = 0.0, *, num_ahead: int = 0) -> None:
        self.budget, self.begun_s = budget, begun_s  # by the monotonic clock: when this start of the run began
        self.num_ahead = num_ahead  # steps that are taken before a wish to stop is seen
        self.until_s = begun_s + budget.seconds_left if budget else math.inf
        self.step_s, self.save_s = step_s, 0.0  # of the last step (before the first: as predicted), and of the longest save
        self.is_passed = False

    def wants_stop(self) -> bool:
        """Whether the run should end with this step, because another step and the last save would exceed the budget."""
        if time.monotonic() + (1 + self.num_ahead) * self.step_s + self.save_s > self.until_s:
            self.is_passed = True
        return self.is_passed

    def saw(self, step_s: float, saves: Iterable[SaveReport]) -> None:
        """Update how long steps and saves take."""
        self.step_s = step_s
        for report in saves:
            self.save_s = max(self.save_s, report.stall_s + report.write_s + report.commit_s)

    @property
    def spent_usd(self) -> Decimal:
        """US dollars spent until now, earlier starts included."""
        return self.budget.cost_usd(time.monotonic() - self.begun_s) if self.budget else Decimal(0)
