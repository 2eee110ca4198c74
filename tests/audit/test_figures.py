"""Numbers as the arithmetic of an audit shows them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.audit.figures import count, figure, minutes, percent, teraflops


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1234.5, "1,234"),
        (1235.5, "1,236"),
        (999_999_999_999_999, "999,999,999,999,999"),
        (1e15, "1.000e15"),
        (-5e15, "-5.000e15"),
    ],
)
def test_counts_are_whole_with_thousands_separated(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (3.14159, "3.142"),
        (999.94, "999.9"),
        (1000, "1,000"),
        (123_456_789, "123,456,789"),
        (1e9, "1.000e9"),
        (2.53e24, "2.530e24"),
        (1e-3, "0.001"),
        (9.994e-4, "9.994e-4"),
        (-2e9, "-2.000e9"),
    ],
)
def test_figures_have_four_digits(value: float, text: str) -> None:
    assert figure(value) == text


@given(st.floats(1e-30, 1e30) | st.floats(-1e30, -1e-30))
def test_a_figure_reads_back_as_its_value_to_four_digits(value: float) -> None:
    assert float(figure(value).replace(",", "")) == pytest.approx(value, rel=6e-4)
    assert len(figure(value)) <= len("-999,999,999")


def test_rates_times_and_shares_carry_their_unit() -> None:
    assert teraflops(989.4e12) == "989.4 TFLOP/s"
    assert minutes(90) == "1.5 min" and minutes(433.8) == "7.23 min"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0.0 %"), (0.301, "30.1 %"), (1.5, "150.0 %"), (0.01, "1.0 %"), (0.00567, "0.57 %"), (-0.004, "-0.4 %"), (-0.25, "-25.0 %")],
)
def test_small_shares_keep_two_digits(share: float, text: str) -> None:
    assert percent(share) == text
