"""Work on one accelerator: numbers worked by hand, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.compute import layer_backward_bytes, layer_forward_bytes, matmul_flops_per_s, matmul_s

positive = st.floats(1e-3, 1e6)


def test_cores_and_power_take_their_time_one_after_the_other():
    # half of 1,000 FLOP/s: 2 ms a FLOP; 1 mJ a FLOP at 1 W: 1 ms more
    assert matmul_flops_per_s(1000.0, 0.5, 1e-3, 1.0) == pytest.approx(1 / 0.003)


def test_without_a_price_in_energy_the_ceiling_is_reached():
    assert matmul_flops_per_s(1000.0, 0.95, 0.0, 700.0) == pytest.approx(950.0)


@given(positive, positive, positive)
def test_a_higher_power_cap_is_faster_but_less_than_in_proportion(peak, joule, cap):
    once, twice = matmul_flops_per_s(peak, 0.9, joule, cap), matmul_flops_per_s(peak, 0.9, joule, 2 * cap)
    assert once <= twice * (1 + 1e-12) and twice <= 2 * once * (1 + 1e-12)
    assert twice <= 0.9 * peak


def test_a_product_takes_two_flops_for_each_of_its_terms():
    assert matmul_s(100.0, 200.0, 50.0, 1e6, 0.0) == pytest.approx(2.0)


def test_a_side_of_half_size_alone_halves_the_rate():
    large = 1e12
    assert matmul_s(100.0, large, large, 1e24, 100.0) == pytest.approx(2 * matmul_s(100.0, large, large, 1e24, 0.0))


def test_each_short_side_adds_its_own_penalty():
    # 1 + 100 (1/100 + 1/200 + 1/50) = 4.5 times the two seconds
    assert matmul_s(100.0, 200.0, 50.0, 1e6, 100.0) == pytest.approx(9.0)


@pytest.mark.parametrize("sides", [(0.0, 5.0, 5.0), (5.0, 0.0, 5.0), (5.0, 5.0, 0.0)])
def test_a_product_of_nothing_takes_no_time(sides):
    assert matmul_s(*sides, 1e6, 100.0) == 0.0


@given(*[st.integers(1, 1000)] * 3)
def test_cutting_a_product_never_speeds_up_the_whole(rows, columns, inner):
    halves_s = 2 * matmul_s(rows / 2, columns, inner, 1e9, 100.0)
    assert halves_s >= matmul_s(rows, columns, inner, 1e9, 100.0) * (1 - 1e-12)


@pytest.mark.parametrize(
    "gated, cast_bytes, forward, backward",
    [
        (0, 0.0, 2 * (10 + 2 + 2), 2 * (12 + 2 + 3)),  # plain MLP in bf16
        (1, 0.0, 2 * (10 + 2 + 3), 2 * (12 + 2 + 5)),  # a gated one reads one more vector, and writes one more gradient
        (0, 1.0, 28 + (2 + 1 + 1), 34 + (1 + 2 + 1)),  # inputs of four products are cast
        (1, 1.0, 30 + (2 + 1 + 1), 38 + (1 + 2 + 2)),
    ],
)
def test_bytes_of_a_token_in_a_layer_of_width_one(gated, cast_bytes, forward, backward):
    assert layer_forward_bytes(1.0, 1.0, 1.0, gated, cast_bytes, 1.0) == forward
    assert layer_backward_bytes(1.0, 1.0, 1.0, gated, cast_bytes) == backward


def test_columns_are_priced_as_their_rows_are():
    rows = np.array([64.0, 128.0, 4096.0])
    np.testing.assert_array_equal(matmul_s(rows, 512.0, 256.0, 1e12, 100.0), [matmul_s(r, 512.0, 256.0, 1e12, 100.0) for r in rows])
