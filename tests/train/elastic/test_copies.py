"""Which ranks hold a whole state, and checkpoints in memory on real ranks."""

from __future__ import annotations

from contextlib import nullcontext
from unittest.mock import MagicMock, patch

import pytest
from on_elastic import copied
from ranks import Pools
from small_run import Small

from meshwright.layout import Layout
from meshwright.train.elastic.copies import Copies, has_second_copy, whole_groups
from meshwright.train.elastic.handover import MESSAGE_BYTES


def test_groups_that_hold_a_whole_state() -> None:
    assert whole_groups(Layout(dp=3, cp=2, zero_stage=0), {0, 2}) == [range(0, 1), range(1, 2), range(4, 5), range(5, 6)]
    assert whole_groups(Layout(dp=4, cp=2, zero_stage=1, zero_ranks=4), {0, 2, 3}) == [range(4, 8)]
    assert whole_groups(Layout(dp=3, zero_stage=2), {0, 1}) == []


@pytest.mark.parametrize(
    ("layout", "has_one"),
    [
        (Layout(dp=2, zero_stage=0), True),
        (Layout(dp=1, zero_stage=0), False),
        (Layout(dp=2, zero_stage=1), False),
        (Layout(dp=4, zero_stage=3, zero_ranks=2), True),
        (Layout(dp=2, cp=2, zero_stage=1, zero_ranks=2), True),
        (Layout(dp=3, cp=2, zero_stage=1, zero_ranks=3), False),  # the middle replica is in both groups
    ],
)
def test_a_second_copy(layout: Layout, has_one: bool) -> None:
    assert has_second_copy(layout) == has_one


@pytest.mark.parametrize(("layout", "message_bytes"), [("dp=2,zero=1", MESSAGE_BYTES), ("dp=2,cp=2,zero=2,mbs=1", 3000)])
def test_a_neighbour_has_the_same_bits(pools: Pools, small: Small, layout: str, message_bytes: int) -> None:
    plan = small.plan(layout)
    found = pools.of(plan.layout.num_ranks).run(copied, plan, message_bytes)
    own = {index: digest for index, _, digest, _ in found}
    assert all(previous == own[before] for _, before, _, previous in found)
    assert len(set(own.values())) == len(found)


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_copy_that_may_not_have_arrived_is_not_kept(is_cut: bool) -> None:
    replica = MagicMock(is_cut=lambda: is_cut)
    replica.mesh.dp.size, replica.mesh.dp.index, replica.mesh.dp.ranks = 2, 0, [0, 1]
    copies = Copies(replica, every=1)
    found = patch.multiple(copies, _introduced=lambda _: ([], []), _swapped=lambda *_: ([], []))
    with found, pytest.raises(RuntimeError, match="were cut") if is_cut else nullcontext():
        copies.take(3, 24)
    assert [copy.step for copy in copies.kept] == ([] if is_cut else [3]) and copies.num_taken == (not is_cut)
