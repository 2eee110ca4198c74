"""Rounds of pairs, slow pairs, and whom they accuse."""

from __future__ import annotations

from itertools import combinations

import pytest

from meshwright.describe.cluster import Tier
from meshwright.doctor.pairs import MOST_RANKS, RANDOM_ROUNDS, rounds_of, rounds_words, slow_pairs, tier_of, to_blame
from meshwright.doctor.reading import Pair
from meshwright.units import GB

NODE = Tier(name="node", link="nvlink-4", num_accelerators=2, num_installed=2, bytes_per_s=450 * GB, latency_s=1e-6)
FABRIC = Tier(name="fabric", link="ndr", num_accelerators=6, num_installed=6, bytes_per_s=50 * GB, latency_s=5e-6)
TIERS = (NODE, FABRIC)
HOSTS = {rank: f"node{rank // 2}" for rank in range(6)}


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 5, 8, 63, MOST_RANKS])
def test_every_pair_meets_once_and_nobody_twice_in_a_round(num_ranks):
    rounds = rounds_of(num_ranks)
    assert sorted(pair for pairs in rounds for pair in pairs) == list(combinations(range(num_ranks), 2))
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == (num_ranks - 1 if num_ranks % 2 == 0 else num_ranks)
    assert rounds_words(num_ranks) == ""


@pytest.mark.parametrize("num_ranks", [MOST_RANKS + 1, 128, 1024])
def test_many_ranks_meet_their_neighbours_and_some_others(num_ranks):
    rounds = rounds_of(num_ranks)
    met = {pair for pairs in rounds for pair in pairs}
    assert {(rank, rank + 1) for rank in range(num_ranks - 1)} | {(0, num_ranks - 1)} <= met
    assert all(len({rank for pair in pairs for rank in pair}) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) <= RANDOM_ROUNDS + 3 and rounds == rounds_of(num_ranks)
    assert str(num_ranks) in rounds_words(num_ranks)


def test_a_pair_belongs_to_the_innermost_tier_that_holds_it():
    assert [getattr(tier_of(*pair, TIERS), "name", None) for pair in ((0, 1), (1, 2), (4, 5), (0, 6))] == ["node", "fabric", "node", None]


def pairs(slow: dict[tuple[int, int], float] | None = None) -> list[Pair]:
    """All pairs of six ranks in three nodes, at usual rates."""
    rates = {pair: 360 * GB if HOSTS[pair[0]] == HOSTS[pair[1]] else 44 * GB for pair in combinations(range(6), 2)}
    return [Pair(first=a, second=b, bytes_per_s=rate) for (a, b), rate in {**rates, **(slow or {})}.items()]


def named(found) -> list[tuple[int, int]]:
    return [(one.pair.first, one.pair.second) for one in found]


def test_pairs_are_compared_within_their_tier():
    assert slow_pairs(pairs(), TIERS, on_gpus=True) == []
    assert named(slow_pairs(pairs({(2, 3): 200 * GB}), TIERS, on_gpus=True)) == [(2, 3)]  # fast for a fabric
    assert named(slow_pairs(pairs({(1, 4): 22 * GB}), TIERS, on_gpus=True)) == [(1, 4)]


def test_all_pairs_may_be_slow_against_the_description():
    half = {(a, b): 20 * GB for a, b in combinations(range(6), 2) if HOSTS[a] != HOSTS[b]}
    found = slow_pairs(pairs(half), TIERS, on_gpus=True)
    assert len(found) == len(half) and "describes" in found[0].words


def test_pcie_may_go_through_the_host():
    pcie = [Tier(name="node", link="pcie-4", num_accelerators=6, num_installed=6, bytes_per_s=32 * GB, latency_s=1e-6)]
    assert slow_pairs(pairs(dict.fromkeys(combinations(range(6), 2), 10 * GB)), pcie, on_gpus=True) == []
    assert len(slow_pairs(pairs(dict.fromkeys(combinations(range(6), 2), 5 * GB)), pcie, on_gpus=True)) == 15


def test_processes_on_cores_are_compared_with_each_other_only():
    rates = dict.fromkeys(combinations(range(6), 2), 1 * GB)
    assert slow_pairs(pairs(rates), TIERS, on_gpus=False) == []
    assert slow_pairs(pairs({**rates, (0, 3): 0.4 * GB}), (), on_gpus=False) == []
    assert named(slow_pairs(pairs({**rates, (0, 3): 0.3 * GB}), (), on_gpus=False)) == [(0, 3)]


def test_a_port_that_is_in_many_slow_pairs_is_blamed_and_not_its_partners():
    slow = [(2, 0), (2, 1), (2, 4), (3, 5)]
    assert to_blame([(min(pair), max(pair)) for pair in slow], HOSTS) == {"node1": [(0, 2), (1, 2), (2, 4), (3, 5)]}


def test_one_pair_alone_accuses_both_ends_or_the_node_that_holds_both():
    assert to_blame([(1, 4)], HOSTS) == {"node0": [(1, 4)], "node2": [(1, 4)]}
    assert to_blame([(2, 3)], HOSTS) == {"node1": [(2, 3)]}
    assert to_blame([], HOSTS) == {}
