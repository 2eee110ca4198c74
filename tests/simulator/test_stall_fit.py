"""The fit of stalls: rates, lengths, and how much runs of one class differ."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.simulator.noise import SHORTEST_STALL
from meshwright.simulator.noise_classes import COMMON
from meshwright.simulator.stall_fit import PRIOR_STALLS, Stalls, fitted_stalls


def stalls(count: int, hours: float, beyond: float = 0.5) -> Stalls:
    return Stalls((SHORTEST_STALL + beyond,) * count, hours)


def test_even_counts_give_the_plain_rate_and_no_spread() -> None:
    found = fitted_stalls([stalls(10, 100.0)] * 4, ["hopper"] * 4)
    assert found.per_hour[COMMON] == pytest.approx(0.1, rel=1e-6) and found.per_hour["hopper"] == pytest.approx(0.1, rel=1e-6)
    assert found.spread == 0.0 and found.share["hopper"] == pytest.approx(0.5)


def test_counts_that_differ_by_more_than_chance_have_a_spread() -> None:
    found = fitted_stalls([stalls(0, 100.0)] * 5 + [stalls(30, 100.0)], ["hopper"] * 6)
    assert found.spread > 1


def test_a_class_with_few_stalls_is_drawn_to_the_common_rate() -> None:
    logs = [stalls(20, 100.0)] * 5 + [stalls(0, 1.0)]
    found = fitted_stalls(logs, ["hopper"] * 5 + ["early"])
    assert 0 < found.per_hour["early"] < found.per_hour[COMMON] and PRIOR_STALLS > 0


def test_no_stall_at_all_is_a_rate_of_nothing() -> None:
    found = fitted_stalls([stalls(0, 10.0)] * 2, ["hopper"] * 2)
    assert found.per_hour == {COMMON: 0.0, "hopper": 0.0} and found.share[COMMON] == 0.0


def test_lengths_and_hours_are_read_from_a_log() -> None:
    seen = Stalls.seen(np.array([0.3, 0.4]), 7200.0)
    assert seen == Stalls((0.3, 0.4), 2.0)
