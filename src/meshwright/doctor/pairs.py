"""Which pairs of ranks exchange, in which rounds; which of them are slow, and whose fault that is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from meshwright.describe.cluster import Tier
from meshwright.doctor.reading import Pair

MOST_RANKS = 64  # that all exchange with all: 63 rounds. More ranks have their neighbours and some partners at random
RANDOM_ROUNDS = 24
SEED = 20261116  # of the random partners: the same on all ranks
LEAST_PAIRS = 3  # whose median says what is usual
OF_DESCRIBED = 0.5  # NCCL reaches 0.8 to 0.9 of a link with messages of this size; a link at half its lanes has at most 0.45
OF_DESCRIBED_PCIE = 0.2  # without NVLink, bytes may go through the host's memory, twice, and both ways at once: an assumption
OF_USUAL = 0.6  # of the median of the pairs of the same tier: healthy links of one kind differ by a few per cent
OF_USUAL_ON_CORES = 1 / 3  # processes that share cores differ by up to 2 times: the one that has its turn is fast

Rounds = list[list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPair:
    """A pair that is too slow, and what was expected of it."""

    pair: Pair
    tier: str
    least_bytes_per_s: float
    words: str  # what the limit is


def rounds_of(num_ranks: int) -> Rounds:
    """Rounds in which each rank has at most one partner: all pairs once, or for many ranks a ring and partners at random."""
    return _all_pairs(num_ranks) if num_ranks <= MOST_RANKS else [*_ring(num_ranks), *_at_random(num_ranks)]


def rounds_words(num_ranks: int) -> str:
    """Which pairs are timed, in words; "" where that is all of them."""
    if num_ranks <= MOST_RANKS:
        return ""
    return f"of {num_ranks} ranks, each exchanged with two neighbours and up to {RANDOM_ROUNDS} partners at random, not with all others"


def _all_pairs(num_ranks: int) -> Rounds:
    """A round-robin tournament by the circle method: the first stays, the others move on by one place."""
    seats: list[int | None] = [*range(num_ranks), *([None] if num_ranks % 2 else [])]
    rounds: Rounds = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in facing if a is not None and b is not None])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def _ring(num_ranks: int) -> Rounds:
    """Neighbours: even ranks with the next, then odd ones; the last with the first in a round of their own where that is needed."""
    even = [(rank, rank + 1) for rank in range(0, num_ranks - 1, 2)]
    odd = [(rank, rank + 1) for rank in range(1, num_ranks - 1, 2)]
    closing = [(0, num_ranks - 1)]
    return [even, [*odd, *closing]] if num_ranks % 2 == 0 else [even, odd, closing]


def _at_random(num_ranks: int) -> Rounds:
    chooser = random.Random(SEED)
    rounds: Rounds = []
    for _ in range(RANDOM_ROUNDS):
        order = chooser.sample(range(num_ranks), num_ranks)
        rounds.append([(min(pair), max(pair)) for pair in zip(order[::2], order[1::2], strict=False)])
    return rounds


def tier_of(first: int, second: int, tiers: Sequence[Tier]) -> Tier | None:
    """The innermost tier that has both ranks in one domain, ranks counted domain by domain; None where none is described."""
    return next((tier for tier in tiers if first // tier.num_accelerators == second // tier.num_accelerators), None)


def slow_pairs(pairs: Sequence[Pair], tiers: Sequence[Tier], *, on_gpus: bool) -> list[SlowPair]:
    """Pairs below what their tier is described with, or far below other pairs of the tier.

    Between processes on cores nothing is described, so they are compared with each other only.
    """
    by_tier: dict[str, list[Pair]] = {}
    described: dict[str, tuple[float, float]] = {}
    for pair in pairs:
        tier = tier_of(pair.first, pair.second, tiers)
        name = tier.name if tier else "all"
        by_tier.setdefault(name, []).append(pair)
        if tier and on_gpus:
            described[name] = OF_DESCRIBED_PCIE if tier.link.startswith("pcie") else OF_DESCRIBED, tier.bytes_per_s
    found = []
    for name, some in by_tier.items():
        usual = _usual(some, OF_USUAL if on_gpus else OF_USUAL_ON_CORES)
        share, rate = described.get(name, (0.0, 0.0))
        limit = max(usual, share * rate)
        words = f"{share:g} of what the cluster describes" if limit == share * rate else "what other pairs of this tier reach"
        found += [SlowPair(pair=pair, tier=name, least_bytes_per_s=limit, words=words) for pair in some if pair.bytes_per_s < limit]
    return sorted(found, key=lambda slow: (slow.pair.first, slow.pair.second))


def _usual(pairs: Sequence[Pair], share: float) -> float:
    return share * median(pair.bytes_per_s for pair in pairs) if len(pairs) >= LEAST_PAIRS else 0.0


def to_blame(slow: Sequence[tuple[int, int]], nodes: Mapping[int, str]) -> dict[str, list[tuple[int, int]]]:
    """Nodes that explain slow pairs, each with the pairs: those in most of them first, so that one bad port is not blamed on its partners.

    One pair alone between two nodes says nothing about which end is at fault: both are named.
    """
    left, found = list(dict.fromkeys(slow)), dict[str, list[tuple[int, int]]]()
    while left:
        counts = Counter(node for first, second in left for node in {nodes[first], nodes[second]})
        most = max(counts.values())
        blamed = {node for node, count in counts.items() if count == most}
        for node in sorted(blamed):
            found[node] = [pair for pair in left if node in (nodes[pair[0]], nodes[pair[1]])]
        left = [(first, second) for first, second in left if not {nodes[first], nodes[second]} & blamed]
    return found
