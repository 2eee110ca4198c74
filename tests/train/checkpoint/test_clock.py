"""Saving by the clock: soon at first, then as the advice has it, and never so often that it costs more than a hundredth."""

from __future__ import annotations

import pytest

from meshwright.cost.checkpoints import best_interval_s
from meshwright.describe.failures import failures
from meshwright.train.checkpoint.clock import FIRST_S, INTERRUPTIONS_PER_ACCELERATOR_HOUR, LONGEST_S, SaveClock
from meshwright.train.checkpoint.saver import SaveReport


class Now:
    """A clock that a test turns."""

    s = 100.0

    def __call__(self) -> float:
        return self.s


def saves(num_ranks: int, save_s: float, until_s: float) -> list[float]:
    """When a run saves, in seconds since its start, if every save takes so long."""
    now, found = Now(), []
    clock = SaveClock(num_ranks, now)
    while now.s < 100.0 + until_s:
        now.s += 1.0
        if clock.is_due():
            clock.saved()
            found.append(now.s - 100.0)
            report = SaveReport(step=1, path=None, stall_s=save_s, write_s=0.0, commit_s=9.0, num_bytes=0, notes=(), failure=None)
            clock.saw(report)
    return found


def test_a_young_run_saves_when_it_is_twice_as_old_as_at_its_last_save() -> None:
    assert saves(8, 0.1, 2000.0) == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1560.0]


def test_a_large_machine_saves_as_often_as_the_advice() -> None:
    advised = best_interval_s(1.0, 3600 / (2e-5 * 16384))
    assert FIRST_S < advised < LONGEST_S
    later = [b - a for a, b in zip(saves(16384, 1.0, 2000.0)[4:], saves(16384, 1.0, 2000.0)[5:], strict=False)]
    assert later == pytest.approx([advised] * len(later), abs=1.0)


def test_saves_that_take_long_are_rare() -> None:
    assert saves(1 << 20, 20.0, 10_000.0) == [30.0, 2030.0, 4030.0, 6030.0, 8030.0]


def test_the_assumed_rate_is_that_of_the_published_machine() -> None:
    assert pytest.approx(failures("llama3").per_accelerator_hour, rel=0.1) == INTERRUPTIONS_PER_ACCELERATOR_HOUR
