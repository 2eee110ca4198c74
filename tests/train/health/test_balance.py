"""The deal for a slow replica: the same samples, a shorter step, and the even deal where nothing is gained."""

from __future__ import annotations

import pytest

from meshwright.layout import parse_layout
from meshwright.train.health.balance import balanced, slowdowns, step_of
from meshwright.train.health.stragglers import SlowRank


def test_a_slow_replica_has_fewer_micro_batches() -> None:
    assert balanced(parse_layout("dp=4"), 64, [1.0, 1.3, 1.0, 1.0]) == (17, 13, 17, 17)
    assert balanced(parse_layout("dp=2"), 12, [1.0, 2.0]) == (8, 4)


def test_a_batch_that_does_not_divide_evenly_keeps_its_samples() -> None:
    """Three replicas share eight micro-batches: a round of the even deal has one without loss."""
    assert balanced(parse_layout("dp=3"), 8, [1.0, 1.0, 1.0]) == (3, 3, 3)
    deal = balanced(parse_layout("dp=3"), 8, [1.0, 2.0, 1.0])
    assert sum(deal) == 8 and deal[1] < 3


@pytest.mark.parametrize("slower", [1.1, 1.3, 2.0])
@pytest.mark.parametrize("layout, batch", [("dp=4", 128), ("dp=8,pp=4", 512), ("dp=2", 64), ("dp=16,mbs=2", 1024)])
def test_more_than_60_percent_of_the_loss_is_recovered_if_there_are_enough_micro_batches(layout: str, batch: int, slower: float) -> None:
    parsed = parse_layout(layout)
    slowdown = [1.0] * (parsed.dp - 1) + [slower]
    even = (batch // parsed.micro_batch // parsed.dp,) * parsed.dp
    sound, before = step_of(parsed, even, [1.0] * parsed.dp), step_of(parsed, even, slowdown)
    deal = balanced(parsed, batch, slowdown)
    # With two replicas the sound one takes all of what the slow one gives up: no deal can recover more than this.
    best = sum(even) / sum(1 / one for one in slowdown) if parsed.pp == 1 else sound
    assert sum(deal) == sum(even)
    assert (before - step_of(parsed, deal, slowdown)) >= 0.6 * (before - max(sound, best))


def test_where_nothing_is_gained_or_possible_the_deal_is_even() -> None:
    assert balanced(parse_layout("dp=4"), 16, [1.0, 1.1, 1.0, 1.0]) == (4, 4, 4, 4)
    assert balanced(parse_layout("dp=4"), 4, [1.0, 2.0, 1.0, 1.0]) == (1, 1, 1, 1)
    assert balanced(parse_layout("dp=2,zero=3"), 32, [1.0, 2.0]) == (16, 16)


def test_a_replica_is_as_slow_as_its_slowest_rank() -> None:
    layout = parse_layout("tp=2,dp=2")
    slow = [SlowRank(2, 40, 1.2, 40, (0,)), SlowRank(3, 40, 1.5, 40, (1,))]
    assert slowdowns(layout, slow) == [1.0, 1.5]
