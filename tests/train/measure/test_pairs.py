"""Pairs of gloo ranks, timed; a slow pair is slow."""

from __future__ import annotations

from on_pairs import all_pairs, waits_in_vain


def test_every_pair_is_timed_by_its_first_rank(pools):
    found = pools.of(4).run(all_pairs, [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 3], [1, 2]]], [1, 2])
    assert [sorted(rates) for rates in found] == [[1, 2, 3], [2, 3], [3], []]
    others = [rate for rank, rates in enumerate(found) for other, rate in rates.items() if (rank, other) != (1, 2)]
    assert found[1][2] < 4_194_304 / 0.05 + 1 and min(others) > 0


def test_whom_a_rank_waits_for_can_be_read_meanwhile(pools):
    assert pools.of(2).run(waits_in_vain) == [1, 0]
