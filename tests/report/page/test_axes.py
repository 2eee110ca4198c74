"""Ticks and scales: round, few, inside, in order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwright.report.page.axes import log_ticks, logarithmic, padded, ticks, time_ticks


@pytest.mark.parametrize("low, high", [(0.0, 1.254), (0.0, 105.0), (3.0, 3.4), (1e-6, 2e-6)])
def test_ticks_are_round_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 8)
    assert 3 <= len(found) <= 10 and low <= found[0] + 1e-12 and found[-1] <= high + 1e-12


def test_ticks_of_logarithmic_axes() -> None:
    assert log_ticks(90, 1200) == [100, 200, 500, 1000]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1000, 1e4, 1e5, 1e6]
    assert time_ticks(50, 4000) == [60, 120, 300, 600, 1200, 1800, 3600]
    low, high = padded([5.0])
    assert low < 5.0 < high


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(2, 12))
@example(low=1e-15, span=4e-15, count=5)
@example(low=0.0, span=3e-40, count=5)
def test_ticks_are_in_order_and_evenly_apart(low: float, span: float, count: int) -> None:
    found = ticks(low, low + span, count)
    steps = np.diff(found)
    assert len(found) <= 2 * count + 1 and (steps > 0).all()
    assert np.allclose(steps, steps[0] if len(steps) else 0.0, rtol=1e-6, atol=1e-15 * abs(low) * 8)
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value in found)


@pytest.mark.parametrize("high", [3.0, 2.0, math.nan])
def test_an_axis_without_room_has_one_tick(high: float) -> None:
    assert ticks(3.0, high, 5) == [3.0]


@given(st.floats(1e-6, 1e6), st.floats(1.0001, 1e9))
def test_ticks_of_a_logarithmic_axis_are_positive_in_order_and_inside(low: float, ratio: float) -> None:
    for found in (log_ticks(low, low * ratio), time_ticks(low, low * ratio)):
        assert found and found == sorted(set(found)) and found[0] > 0
        assert all(low * 0.99 <= value <= low * ratio * 1.01 for value in found)


def test_durations_are_ticked_as_people_say_them() -> None:
    assert time_ticks(0.2, 0.9) == log_ticks(0.2, 0.9)
    assert time_ticks(0.5, 70.0) == [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0]
    assert time_ticks(3600.0, 3 * 86400.0) == [3600.0, 7200.0, 18000.0, 36000.0, 86400.0, 172800.0]
    assert time_ticks(31.0, 59.0) == log_ticks(31.0, 59.0)  # nothing round in between


def test_a_logarithmic_scale_goes_from_end_to_end() -> None:
    scale = logarithmic(1.0, 100.0, 50.0, 10.0)
    assert [scale(value) for value in (1.0, 10.0, 100.0)] == pytest.approx([50.0, 30.0, 10.0])


def test_room_around_values_is_a_share_of_their_ratio_and_at_least_some() -> None:
    assert padded([7.0]) == pytest.approx((7 / 1.08, 7 * 1.08))
    low, high = padded([1.0, 1e6, 50.0])
    assert (low, high) == pytest.approx((10**-0.48, 10**6.48))
