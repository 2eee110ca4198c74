"""A budget while a run trains: whether another step would pass it. Rank 0 looks at the clock; the others get it with the step's sum."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from decimal import Decimal

from meshwright.ledger import Budget
from meshwright.train.checkpoint import SaveReport


class Limit:
    """The time at which a budget is spent; never on a rank or a run without one."""

    def __init__(self, budget: Budget | None = None, begun_s: float = 0.0, step_s: float = 0.0) -> None:
        self.budget, self.begun_s = budget, begun_s  # by the monotonic clock: when this life of the run began
        self.until_s = begun_s + budget.seconds_left if budget else math.inf
        self.step_s, self.save_s = step_s, 0.0  # of the last step (before any: as predicted), and of the longest save
        self.is_passed = False

    def wants_stop(self) -> bool:
        """Whether the run should end with this step: another one and the last save would pass the budget."""
        if time.monotonic() + self.step_s + self.save_s > self.until_s:
            self.is_passed = True
        return self.is_passed

    def saw(self, step_s: float, saves: Iterable[SaveReport]) -> None:
        """Update how long steps and saves take."""
        self.step_s = step_s
        for report in saves:
            self.save_s = max(self.save_s, report.stall_s + report.write_s + report.commit_s)

    @property
    def spent_usd(self) -> Decimal:
        """What is spent by now, earlier starts included."""
        return self.budget.cost_usd(time.monotonic() - self.begun_s) if self.budget else Decimal(0)
