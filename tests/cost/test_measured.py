"""Times from measured rates: what was timed comes back, and the laws between."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.measured import (
    Correction,
    Placed,
    Rates,
    ends_time,
    exchange_s,
    grouped_s,
    placed_exchange_s,
    rate_near,
    work_s,
)

TIMED = np.array([[8192.0, 8192.0, 16384.0], [6144.0, 4096.0, 4096.0], [4096.0, 14336.0, 4096.0]])
RATES = np.array([600e12, 700e12, 800e12])
sides = st.floats(16, 1e6)


def one_rate(flops_per_s: float = 1e14, bytes_per_s: float = 1e12, cast_bytes: float = 0.0) -> Rates:
    point = np.ones((3, 1))
    products = {way: (point, np.array([flops_per_s])) for way in ("forward", "input", "weight")}
    attention = (point, np.array([flops_per_s]))
    return Rates(
        products=products,
        attention=(attention, attention),
        elementwise_bytes_per_s=bytes_per_s,
        loss_bytes_per_s=bytes_per_s,
        cast_bytes=cast_bytes,
    )


def test_a_shape_that_was_timed_has_the_rate_that_was_seen():
    assert rate_near(TIMED, TIMED, RATES) == pytest.approx(RATES)


@given(sides, sides, sides)
def test_no_rate_lies_outside_what_was_seen(rows, columns, inner):
    rate = rate_near(np.array([[rows], [columns], [inner]]), TIMED, RATES)
    assert RATES.min() * (1 - 1e-9) <= rate[0] <= RATES.max() * (1 + 1e-9)


def test_a_shape_takes_most_after_the_one_it_is_closest_to():
    close = rate_near(np.array([[16000.0], [4096.0], [4096.0]]), TIMED, RATES)
    assert 790e12 < close[0] < 800e12


def test_work_is_looked_up_in_the_shape_it_comes_in_and_nothing_takes_no_time():
    rows = np.array([[8192.0, 0.0], [8192.0, 16384.0]])
    flops = 2 * rows * 4096 * 4096
    seconds = work_s(flops, (rows, 4096.0, 4096.0), TIMED, RATES)
    assert seconds.shape == (2, 2) and seconds[0, 1] == 0 and seconds[0, 0] == seconds[1, 0]
    assert seconds[1, 1] == pytest.approx(2 * 16384 * 4096 * 4096 / 800e12)


def test_collectives_are_read_on_lines_between_sizes():
    timed, seconds = np.array([[2.0, 2.0, 8.0], [1e3, 1e5, 1e3]]), np.array([1e-3, 1e-2, 7e-3])
    assert exchange_s(1e3, 2, timed, seconds) == pytest.approx(1e-3)
    assert exchange_s(1e4, 2, timed, seconds) == pytest.approx(1e-3 * 10**0.5)
    assert exchange_s(2e5, 2, timed, seconds) == pytest.approx(2e-2)  # beyond the largest in proportion
    assert exchange_s(10.0, 2, timed, seconds) == pytest.approx(1e-3)  # below the smallest its time
    assert exchange_s(1e3, 3, timed, seconds) == pytest.approx(2e-3)  # two ranks beyond the first
    assert exchange_s(1e3, 1, timed, seconds) == 0 and exchange_s(0.0, 2, timed, seconds) == 0


def test_collectives_between_hosts_are_read_by_the_place_of_their_groups():
    sizes = np.array([1e3, 1e5])
    timed = [Placed((2, 2), sizes, np.array([1e-3, 1e-2])), Placed((1, 2), sizes, np.array([1e-1, 1.0]))]
    members = np.array([[2.0, 1.0, 1.0, 1.0], [2.0, 2.0, 1.0, 3.0]])
    assert placed_exchange_s(1e3, members, timed) == pytest.approx([1e-3, 1e-1, 0.0, 2e-1])  # alone: nothing; three: as the nearest
    assert placed_exchange_s(2e5, members, timed)[:2] == pytest.approx([2e-2, 2.0])
    assert placed_exchange_s(0.0, members, timed) == pytest.approx(0.0)


def test_ends_are_taken_block_by_block():
    whole, blocks = (sum(ends_time(4096, 128256, 16384, rows, 1.0, one_rate())) for rows in (16384, 4096))
    assert float(whole) == pytest.approx(float(blocks)) == pytest.approx(6 * 16384 * 128256 * 4096 / 1e14 + 16384 * 128256 * 16 / 1e12)


def test_a_correction_goes_through_what_was_seen():
    line = Correction.through([1.0, 3.0], [5.0, 9.0])
    assert (line.factor, line.fixed_s) == (pytest.approx(2.0), pytest.approx(3.0))


@pytest.mark.parametrize("composed, seen", [([2.0], [3.0]), ([1.0, 2.0], [2.0, 1.0]), ([1.0, 2.0], [1.0, 3.0]), ([2.0, 2.0], [3.0, 3.0])])
def test_a_correction_that_would_be_no_price_is_in_proportion(composed, seen):
    found = Correction.through(composed, seen)
    assert found.fixed_s == 0 and found.factor == pytest.approx(float(np.exp(np.mean(np.log(np.array(seen) / composed)))))


def test_points_close_together_make_no_line():
    found = Correction.through([10.0, 10.5], [11.0, 11.1])  # a line would have a slope of 0.2
    assert found.fixed_s == 0 and found.factor == pytest.approx((11.0 / 10.0 * 11.1 / 10.5) ** 0.5)


def test_a_grouped_product_that_was_timed_takes_its_seconds():
    sides = np.array([[8.0, 8.0], [1024.0, 2048.0], [256.0, 256.0], [64.0, 64.0]])
    flops = 2 * sides[1:].prod(axis=0)
    rates = replace(
        one_rate(),
        grouped={
            way: (sides, flops / seconds) for way, seconds in (("forward", [1.0, 3.0]), ("input", [2.0, 4.0]), ("weight", [5.0, 6.0]))
        },
    )
    assert [float(each) for each in grouped_s(8, 1024, 256, 64, rates)] == pytest.approx([1.0, 2.0, 5.0])
    assert [float(each) for each in grouped_s(8, 2048, 256, 64, rates)] == pytest.approx([3.0, 4.0, 6.0])
    assert float(grouped_s(8, 0, 256, 64, rates)[0]) == 0.0
