"""Ticks and scales: round, few, inside, in order."""

from __future__ import annotations

import pytest

from meshwright.report.page.axes import log_ticks, padded, ticks, time_ticks


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
