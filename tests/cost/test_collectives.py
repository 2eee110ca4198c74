"""Collectives on a network of tiers: numbers worked by hand, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.collectives import all_to_all_s, gather_s, neighbour_s

RATES = np.array([4.0, 1.0])  # bytes/s inside a domain, and between domains


def group(*members):
    """Members of one group in a domain of each tier, from the inside out."""
    return np.array(members, dtype=np.float64)


@pytest.mark.parametrize(
    "members, seconds",
    [
        ((1, 1), 0.0),  # alone: nothing to gather
        ((4, 4), 8 * 3 / 4 / 4),  # within a domain: three of four shares over a port of 4 B/s
        ((1, 4), 8 * 3 / 4 / 1),  # one in each of four domains: the same over ports of 1 B/s
        ((2, 4), 8 * 3 / 4 / 2 / 1),  # two in each of two: two ports to the outside carry half each, and are still the slowest
        ((8, 16), 8 * 15 / 16 / 4),  # eight ports to the outside: now the inside decides
    ],
)
def test_a_gather_on_two_tiers(members, seconds):
    assert gather_s(8.0, group(*members), RATES) == pytest.approx(seconds)


def test_every_round_of_a_gather_costs_a_hop():
    assert gather_s(8.0, group(2, 4), RATES, 0.1) == pytest.approx(3.0 + 3 * 0.1)
    assert gather_s(8.0, group(1, 1), RATES, 0.1) == 0.0


@pytest.mark.parametrize(
    "members, seconds",
    [
        ((1, 1), 0.0),
        ((4, 4), 8 * 3 / 4 / 4),  # all but one's own share stays inside
        ((1, 4), 8 * 3 / 4 / 1),
        ((2, 4), 8 * 2 / 4 / 1),  # one share inside at 4 B/s, two outside at 1 B/s, side by side
    ],
)
def test_an_all_to_all_on_two_tiers(members, seconds):
    assert all_to_all_s(8.0, group(*members), RATES) == pytest.approx(seconds)


def test_an_all_to_all_costs_one_hop_unless_it_is_alone():
    assert all_to_all_s(8.0, group(2, 4), RATES, 0.1) == pytest.approx(4.1)
    assert all_to_all_s(8.0, group(1, 1), RATES, 0.1) == 0.0


@pytest.mark.parametrize(
    "members, seconds",
    [
        ((1, 1), 0.0),
        ((4, 4), 8 / 4 + 0.1),
        ((2, 4), 8 / 1 + 0.2),  # some neighbour is in the next domain, and the ring waits for it
        ((1, 2), 8 / 1 + 0.2),
    ],
)
def test_a_message_to_the_next_member(members, seconds):
    assert neighbour_s(8.0, group(*members), RATES, np.array([0.1, 0.2])) == pytest.approx(seconds)


payloads = st.floats(1.0, 1e12)
inner_sizes = st.sampled_from([1, 2, 4, 8, 64])
domains = st.integers(1, 64)


@given(payloads, inner_sizes, domains, domains)
def test_a_collective_over_more_domains_is_never_faster(payload, inside, few, more):
    few, more = sorted((few, more))
    for price in (gather_s, all_to_all_s):
        one, other = (price(payload, group(inside, inside * count), RATES, 1e-6) for count in (few, more))
        assert one <= other * (1 + 1e-12)


@given(payloads, st.integers(1, 64), st.integers(1, 64))
def test_a_collective_over_more_ranks_of_one_domain_is_never_faster(payload, few, more):
    few, more = sorted((few, more))
    for price in (gather_s, all_to_all_s):
        assert price(payload, group(few, few), RATES, 1e-6) <= price(payload, group(more, more), RATES, 1e-6) * (1 + 1e-12)


@given(payloads, inner_sizes, domains)
def test_doubled_bandwidths_halve_the_time(payload, inside, count):
    members = group(inside, inside * count)
    for price in (gather_s, all_to_all_s):
        assert price(payload, members, 2 * RATES) == pytest.approx(price(payload, members, RATES) / 2)


@given(payloads, inner_sizes, domains)
def test_no_port_sends_more_than_everything(payload, inside, count):
    members = group(inside, inside * count)
    assert gather_s(payload, members, RATES) <= payload / RATES.min()
    assert all_to_all_s(payload, members, RATES) <= payload / RATES.min()


def test_columns_are_priced_as_their_rows_are():
    members = np.array([[1.0, 2.0, 8.0], [4.0, 4.0, 64.0]])
    rates = RATES[:, None]
    for price in (gather_s, all_to_all_s):
        alone = [price(8.0, members[:, i], RATES) for i in range(3)]
        np.testing.assert_array_equal(price(8.0, members, rates), alone)
