"""How many micro-batches each replica should have when one of them is slow: fewer for the slow one, so that all end at about the same time.

The samples of a batch stay the same, only sums are added in another order. What is gained depends on how many micro-batches there are to
move: a replica that is 30 % slower needs about four to get one less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.layout import Layout
from meshwright.train.health.stragglers import SlowRank
from meshwright.train.membership import deal_refusal
from meshwright.train.parallel.batches import Deal, even_deal


def slowdowns(layout: Layout, slow: Iterable[SlowRank]) -> list[float]:
    """How much slower each replica is, 1 for most: as slow as its slowest rank."""
    found = [1.0] * layout.dp
    for one in slow:
        replica = layout.coordinate(one.rank)["dp"]
        found[replica] = max(found[replica], one.slowdown)
    return found


def balanced(layout: Layout, global_batch: int, slowdown: Sequence[float]) -> Deal:
    """The deal with the shortest step if replicas are slower by these factors; the even one if no other is possible or shorter.

    A micro-batch is given to the replica that would be the first to end with it. A pipeline takes as long as its micro-batches and the
    other stages together.
    """
    even = even_deal(layout, global_batch)  # where the batch does not divide evenly, it has micro-batches that carry no loss
    deal = [1] * layout.dp
    for _ in range(global_batch // layout.micro_batch - layout.dp):
        deal[min(range(layout.dp), key=lambda i: ((deal[i] + layout.pp) * slowdown[i], i))] += 1
    if deal_refusal(layout, tuple(deal)) or step_of(layout, deal, slowdown) >= step_of(layout, even, slowdown):
        return even
    return tuple(deal)


def step_of(layout: Layout, deal: Sequence[int], slowdown: Sequence[float]) -> float:
    """How long the slowest replica computes, in units of a micro-batch on a sound one."""
    return max((number + layout.pp - 1) * slower for number, slower in zip(deal, slowdown, strict=True))
