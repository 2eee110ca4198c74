"""A budget while a run trains: it ends with the step after which another one and a save would pass it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import pytest

from meshwright.train.health import limit
from meshwright.train.health.limit import Limit


@dataclass
class Budget:
    """As much of a budget as a limit reads: a dollar a second."""

    seconds_left: float

    def cost_usd(self, seconds: float) -> Decimal:
        return Decimal(round(seconds))


@dataclass
class Save:
    stall_s: float
    write_s: float
    commit_s: float


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, to be set by hand."""
    now = [1000.0]
    monkeypatch.setattr(limit, "time", type("Clock", (), {"monotonic": staticmethod(lambda: now[0])}))
    return now


def made(seconds_left: float, step_s: float = 0.0) -> Limit:
    return Limit(Budget(seconds_left), begun_s=1000.0, step_s=step_s)  # type: ignore[arg-type]


def test_a_run_without_a_budget_never_wants_to_stop() -> None:
    free = Limit()
    free.saw(1e9, [])
    assert not free.wants_stop() and free.until_s == math.inf and free.spent_usd == 0


def test_the_step_before_the_budgets_end_is_the_last(clock: list[float]) -> None:
    ours = made(100.0, step_s=10.0)
    assert not ours.wants_stop()
    clock[0] = 1089.0
    assert not ours.wants_stop()  # another step ends at 1099
    clock[0] = 1091.0
    assert ours.wants_stop()


def test_steps_and_the_longest_save_are_learned(clock: list[float]) -> None:
    ours = made(100.0)
    ours.saw(5.0, [Save(1.0, 10.0, 2.0), Save(1.0, 3.0, 1.0)])  # type: ignore[list-item]
    ours.saw(6.0, [Save(0.0, 1.0, 0.0)])  # type: ignore[list-item]
    assert (ours.step_s, ours.save_s) == (6.0, 13.0)
    clock[0] = 1080.0
    assert not ours.wants_stop()
    clock[0] = 1082.0
    assert ours.wants_stop()


def test_a_budget_that_is_passed_stays_passed(clock: list[float]) -> None:
    ours = made(10.0)
    clock[0] = 1011.0
    assert ours.wants_stop() and ours.spent_usd == Decimal(11)
    clock[0] = 1000.0
    assert ours.wants_stop() and ours.is_passed
