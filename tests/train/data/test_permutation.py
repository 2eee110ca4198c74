"""The order of samples: a permutation, a function of names and numbers, and the same for ever."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.train.data.permutation import Permutation, key_of, mixed


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 1000, 4095, 4096, 4097, 50_000])
def test_every_number_goes_somewhere_else(size):
    assert np.array_equal(np.sort(Permutation.of(size, "law", 1)(np.arange(size))), np.arange(size))


@given(st.integers(1, 2**40), st.integers(0, 2**63), st.data())
def test_a_number_stays_within_and_does_not_depend_on_its_company(size, seed, data):
    numbers = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8))
    permutation = Permutation.of(size, seed)
    together = permutation(numbers)
    assert all(0 <= number < size for number in together)
    assert [int(permutation(number)[0]) for number in numbers] == together.tolist()
    assert len(set(together.tolist())) == len(set(numbers))


def test_other_names_give_other_orders():
    orders = {tuple(Permutation.of(100, "x", seed, epoch)(np.arange(100))) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_the_order_is_spread_evenly():
    # the mean place of each number over 2,000 orders of 16 is 7.5, with a deviation of 4.61 / sqrt(2000) = 0.10
    places = np.mean([Permutation.of(16, seed)(np.arange(16)) for seed in range(2000)], axis=0)
    assert np.all(np.abs(places - 7.5) < 0.52)


def test_neighbours_are_not_kept_together():
    order = Permutation.of(10_000, "neighbours")(np.arange(10_000))
    assert np.mean(np.abs(np.diff(order)) == 1) < 0.001
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.05


def test_the_order_never_changes():
    # Runs that are resumed hang on these numbers.
    assert Permutation.of(20, "golden", 7)(np.arange(20)).tolist() == [0, 2, 13, 17, 18, 14, 4, 12, 8, 15, 19, 7, 9, 6, 1, 11, 3, 10, 5, 16]
    assert Permutation.of(10**9, "golden", 7)([0, 1, 999_999_999]).tolist() == [225906482, 890348181, 261603728]


def test_the_hash_is_splitmix64():
    # The first outputs of splitmix64 from state 0 are the finaliser of multiples of its constant; the second call is state 0x9E37...
    assert int(mixed(0)[0]) == 0xE220A8397B1DCDAF
    assert int(mixed(0x9E3779B97F4A7C15)[0]) == 0x6E789E6AA1B965F4


def test_keys_differ_by_part():
    assert len({key_of("a", 1), key_of("a", 2), key_of("b", 1), key_of("a")}) == 4
