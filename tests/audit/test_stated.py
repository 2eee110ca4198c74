from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.audit.stated import exactly, stated, stated_time


@pytest.mark.parametrize(
    "value, low, high", [(99.8, 99.75, 99.85), (28, 27.5, 28.5), (28.0, 27.5, 28.5), (1.2712, 1.27115, 1.27125), (0.04, 0.035, 0.045)]
)
def test_a_number_stands_for_all_that_round_to_it(value: float, low: float, high: float) -> None:
    assert (stated(value).low, stated(value).high) == pytest.approx((low, high))


@pytest.mark.parametrize("value, low, high", [(1.0, 0.95, 1.05), (7, 6.65, 7.35), (20, 19.5, 20.5), (1.2712, 1.27115, 1.27125)])
def test_a_time_is_rounded_by_a_twentieth_at_the_most(value: float, low: float, high: float) -> None:
    assert (stated_time(value).low, stated_time(value).high) == pytest.approx((low, high))


def test_a_quotient_carries_the_rounding_of_both() -> None:
    ratio = stated(1.2734).over(stated(1.2712)).times(100)
    assert ratio.value == pytest.approx(100.173, abs=1e-3)
    assert (ratio.low, ratio.high) == pytest.approx((1.27335 / 1.27125 * 100, 1.27345 / 1.27115 * 100))
    assert not ratio.agrees(stated(99.8)) and ratio.agrees(stated(100.2))


def test_an_exact_value_agrees_with_what_rounds_to_it() -> None:
    assert stated(35.3).agrees(exactly(100 * 148 / 419))
    assert not stated(30.1).agrees(exactly(100 * 148 / 419))


@given(st.floats(1e-6, 1e12))
def test_a_range_holds_its_value_and_stays_positive(value: float) -> None:
    one = stated(value)
    assert 0 < one.low <= one.value <= one.high
    assert one.agrees(one.widened(0.01))
