"""Which state the ranks go on from, by what each of them has in memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist

from meshwright.layout import Layout
from meshwright.train.checkpoint import Piece
from meshwright.train.elastic import carry as carry_module
from meshwright.train.elastic.carry import Carry, Choice, Holding, Keeping, Uncovered, Used, _level, choose
from meshwright.train.loop import Progress
from meshwright.train.sums import NUM_SUMS, StepResult

ZERO_0 = Layout(dp=3, zero_stage=0)
ZERO_1 = Layout(dp=3, zero_stage=1)


def holding(index: int, step: int, *, generation: int = 4, dp: int = 3, copies: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    entry = {"generation": generation, "dp": dp, "index": index, "step": step, "samples": 8 * step, "adopted": []}
    return {**entry, "copies": [[one, 8 * one] for one in copies], **more}


def test_without_a_state_there_is_nothing_to_choose() -> None:
    assert choose([[], []], ZERO_0) is None


def test_one_replica_is_enough_without_zero_and_the_furthest_step_counts() -> None:
    found = choose([[holding(0, 6)], [holding(2, 7)], []], ZERO_0)
    assert found == Choice(generation=4, dp=3, step=7, samples=56, from_copies=False, holders={0: 0, 1: 2}, adopted={0: [], 1: []})


def test_a_divided_state_is_taken_from_the_newest_copies_that_all_have() -> None:
    found = choose([[holding(0, 8, copies=(6, 7))], [holding(2, 7, copies=(5, 6, 7))]], ZERO_1)
    assert found is not None and (found.step, found.from_copies) == (7, True)


def test_copies_are_on_another_node_where_several_replicas_share_one() -> None:
    left = [[holding(index, 8, dp=4, copies=(8,), apart=2)] for index in (0, 1)]  # replicas 2 and 3 were lost with their node
    found = choose(left, Layout(dp=4, zero_stage=1))
    assert found is not None and (found.from_copies, found.apart) == (True, 2)
    beside = [[holding(index, 8, dp=4, copies=(8,), apart=1)] for index in (0, 1)]
    with pytest.raises(Uncovered):
        choose(beside, Layout(dp=4, zero_stage=1))


@pytest.mark.parametrize(
    "said",
    [
        [[holding(0, 8)], [holding(2, 8)]],  # no copies
        [[holding(2, 8, copies=(8,))]],  # replica 1's copy was at 2, but that of 0 was at 1
        [[holding(0, 8, copies=(8,))], [holding(2, 8, copies=(7,))]],  # no step that both have
    ],
)
def test_a_part_that_no_rank_has_is_an_error(said: list[list[dict[str, Any]]]) -> None:
    with pytest.raises(Uncovered, match="no other rank has a copy"):
        choose(said, ZERO_1)


def test_an_incomplete_generation_gives_way_to_the_one_before() -> None:
    before = [holding(index, 8) for index in range(3)]
    said = [[holding(0, 8, generation=5, dp=4), before[0]], [before[1]], [before[2]]]
    found = choose(said, ZERO_1)
    assert found is not None and (found.generation, found.dp) == (4, 3)


def test_a_second_group_holds_the_state_too() -> None:
    found = choose([[holding(2, 9, dp=4)], [holding(3, 8, dp=4)]], Layout(dp=4, zero_stage=1, zero_ranks=2))
    assert found is not None and (found.step, found.from_copies) == (9, False)


def test_what_a_leaving_replica_handed_on_counts() -> None:
    found = choose([[holding(0, 8, adopted=[1, 2])]], ZERO_1)
    assert found is not None and found.adopted == {0: [1, 2]} and not found.from_copies


def test_the_generation_before_is_kept_until_all_ranks_have_copies_of_the_new_one() -> None:
    """A replica that joins is not copied before its first step; after it every rank copies, and after the next all are known to have."""
    taken: list[int] = []
    copies = MagicMock(num_taken=0, is_due=lambda step: step % 4 == 0)

    def take(step: int, samples: int) -> float:
        taken.append(step)
        copies.num_taken += 1
        return 0.5

    copies.take = take
    carry = Carry()
    before, now = MagicMock(generation=0), MagicMock(generation=1)
    carry.hold(before)
    carry.hold(now, 0)
    keeping = Keeping(carry=carry, copies=copies)
    assert keeping.after_step(MagicMock(step=6, samples=48)) == 0.5 and carry.holdings == [now, before]
    assert keeping.after_step(MagicMock(step=7, samples=56)) == 0.0 and carry.holdings == [now]
    assert keeping.after_step(MagicMock(step=8, samples=64)) == 0.5 and taken == [6, 8]
    carry.hold(now, 1)
    assert Keeping(carry=carry).after_step(MagicMock(step=9, samples=72)) == 0.0 and carry.holdings == [now]


def test_the_generation_that_the_new_one_was_filled_from_is_kept() -> None:
    """A generation that was lost before it had copies is not: the one before it is whole."""
    carry = Carry()
    first, lost, now = (MagicMock(generation=number) for number in range(3))
    carry.hold(first)
    carry.hold(lost, 0)
    carry.hold(now, 0)
    assert carry.holdings == [now, first]


def levelled(step: int, *, is_cut: bool = False) -> Holding:
    """What a rank has whose last sums are those of step 6, which it has made."""
    replica = MagicMock(is_uncounted=False, is_cut=lambda: is_cut)
    replica.workload.tokens_per_step = replica.workload.global_batch = 8
    replica.sums.totals = torch.full((NUM_SUMS,), 6.0, dtype=torch.float64)

    def update(result: StepResult, rate: float) -> None:
        replica.is_uncounted = True

    replica.update_shards.side_effect = update
    return Holding(generation=4, replica=replica, progress=Progress(step=step, samples=8 * step), dp=3, index=1)


def level(mine: Holding, rank: int, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Bring the ranks to one step, of which rank 0's sums are sevens; what went over the wire."""
    said = [[holding(index, step)] for index, step in enumerate(steps)]
    choice = choose(said, ZERO_0)
    sent: list[float] = []

    def broadcast(sums: torch.Tensor, giver: int) -> None:
        if rank != giver:
            sums.fill_(7.0)
        sent.extend(sums.tolist())

    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    monkeypatch.setattr(dist, "broadcast", broadcast)
    assert choice is not None
    _level(choice, mine, said, torch.device("cpu"))
    return sent


def test_a_rank_that_was_given_the_sums_of_a_step_gives_these_and_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = levelled(6)
    level(mine, 1, [7, 6, 6], monkeypatch)
    assert mine.progress.step == 7
    assert level(mine, 1, [6, 7, 6], monkeypatch) == [7.0] * NUM_SUMS  # rank 0 has gone, and another has its number
    mine.rest()
    assert level(mine, 1, [6, 7, 6], monkeypatch) == [7.0] * NUM_SUMS


def test_sums_that_may_not_have_arrived_are_not_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = levelled(6, is_cut=True)
    with pytest.raises(RuntimeError, match="were cut"):
        level(mine, 1, [7, 6, 6], monkeypatch)
    assert mine.progress.step == 6 and mine.given is None and not mine.replica.update_shards.called  # type: ignore[union-attr]


@pytest.mark.parametrize("is_cut", [False, True])
def test_a_state_that_may_not_have_arrived_is_not_adopted(monkeypatch: pytest.MonkeyPatch, is_cut: bool) -> None:
    mine = levelled(7, is_cut=is_cut)
    mine.replica.mesh.dp.size, mine.replica.mesh.dp.index, mine.replica.mesh.dp.ranks = 2, 0, [0, 1]  # type: ignore[union-attr]
    monkeypatch.setattr(carry_module, "moved", lambda *_: {1: []})
    with pytest.raises(RuntimeError, match="were cut") if is_cut else nullcontext():
        mine.adopt([1])
    assert mine.adopted == ({} if is_cut else {1: []})


def test_a_state_that_rests_is_in_host_memory_with_what_was_adopted() -> None:
    there = torch.ones(2)
    mine, piece = levelled(7), Piece(name="weights/a", shape=(2,), start=(0,), tensor=MagicMock(shape=(2,), cpu=lambda: there))
    mine.adopted = {1: [piece]}
    mine.rest()
    assert mine.adopted[1][0].tensor is there


@pytest.mark.parametrize(("num_sharing", "has_it"), [(1, True), (2, True), (3, False)])
def test_ranks_that_share_a_gpu_share_what_is_free(monkeypatch: pytest.MonkeyPatch, num_sharing: int, has_it: bool) -> None:
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (50, 80))
    assert carry_module.has_room(torch.device("cuda", 0), 20, num_sharing) == has_it


def test_a_generation_with_fewer_replicas_needs_more_where_they_share_a_state() -> None:
    used = Used(held_bytes=100, step_bytes=50)
    two, three = (Layout(dp=dp, zero_stage=0) for dp in (2, 3))
    assert used.needed(three, two, 60) == 150
    assert [used.needed(replace(three, zero_stage=stage), replace(two, zero_stage=stage), 60) for stage in (1, 3)] == [180, 200]
    assert used.needed(replace(two, zero_stage=1), replace(three, zero_stage=1), 60) == 130
    four, same = (Layout(dp=dp, zero_stage=1, zero_ranks=2) for dp in (4, 2))
    assert used.needed(four, same, 60) == 150


def test_the_memory_of_a_step_is_what_it_took_with_one_generation_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    device, now = torch.device("cuda", 0), {"allocated": 40, "peak": 70}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: now["allocated"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: now["peak"])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: now.update(peak=now["allocated"]))
    carry = Carry()
    carry.measure(device)
    assert (carry.used.held_bytes, carry.used.step_bytes) == (0, 0), "a newcomer holds nothing yet"
    carry = Carry(holdings=[levelled(7)])
    carry.measure(device)  # a fault in the first steps
    assert (carry.used.held_bytes, carry.used.step_bytes) == (40, 30)
    now.update(allocated=80, peak=120)  # both generations
    carry.measure(device)  # another fault before the first one's generation is dropped
    assert (carry.used.held_bytes, carry.used.step_bytes) == (40, 30)
    now.update(allocated=45)
    carry.settle(device)
    now.update(peak=80)
    carry.measure(device)
    assert (carry.used.held_bytes, carry.used.step_bytes) == (45, 35)
