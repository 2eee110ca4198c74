"""How many replicas a run has at each step, and how its batch is dealt to them."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import Small

from meshwright.errors import InputError
from meshwright.layout import Layout, parse_layout
from meshwright.train.membership import (
    Dealt,
    Membership,
    changes_after,
    check_deal,
    deal_refusal,
    deals_in_effect,
    dealt,
    dp_at,
    in_effect,
    layout_with,
    num_rounds,
    read_memberships,
    seats_of,
)
from meshwright.train.parallel.batches import sample_numbers


def event(from_step: int, dp: int) -> dict[str, object]:
    return {"kind": "membership", "from_step": from_step, "dp": dp}


@pytest.mark.parametrize(("dp", "shares"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (8, [1] * 8)])
def test_every_micro_batch_is_dealt_once(dp: int, shares: list[int]) -> None:
    layout = Layout(dp=dp, micro_batch=2)
    assert dealt(layout, 16) == shares
    numbers = [n for index in range(dp) for group in sample_numbers(layout, index, 32, 16) for n in group]
    assert sorted(n for n in numbers if n < 48) == list(range(32, 48))
    assert all(len(sample_numbers(layout, index, 32, 16)) == num_rounds(layout, 16) == max(shares) for index in range(dp))


@pytest.mark.parametrize(("zero_ranks", "dp", "sharing"), [(0, 3, 0), (2, 4, 2), (2, 3, 0), (2, 2, 0), (3, 8, 4)])
def test_groups_that_share_a_state_are_never_smaller_than_planned(zero_ranks: int, dp: int, sharing: int) -> None:
    layout = Layout(dp=2 * zero_ranks or 2, zero_ranks=zero_ranks)
    assert layout_with(layout, dp).zero_ranks == sharing


def test_a_run_that_went_back_forgets_what_came_after() -> None:
    found = in_effect([event(1, 4), event(7, 3), event(9, 4), event(5, 2), {"kind": "start"}, event(8, 2)])
    assert found == [Membership(from_step=1, dp=4), Membership(from_step=5, dp=2)]
    assert [dp_at(found, step) for step in (1, 4, 5, 100)] == [4, 4, 2, 2]
    assert changes_after(found) == {4}


def deal(step: int, *numbers: object) -> dict[str, object]:
    return {"kind": "rebalanced", "step": step, "deal": list(numbers)}


def test_deals_count_until_the_replicas_change_or_the_run_goes_back() -> None:
    found = deals_in_effect([event(1, 2), deal(50, 5, 3), deal(100, 4, 4), event(101, 3), deal(150, 3, 2, 3), event(120, 2)])
    assert found == [Dealt(after_step=50, deal=(5, 3))]


def test_ranks_stay_in_their_places_when_they_are_numbered_anew() -> None:
    planned = parse_layout("tp=2,dp=4")  # two ranks a replica: 0 and 1 of them on the first node of four ranks
    assert seats_of(planned, layout_with(planned, 4), (0, 1, 2, 3)) == list(range(8))
    assert seats_of(planned, layout_with(planned, 3), (0, 2, 3)) == [0, 1, 4, 5, 6, 7]
    assert seats_of(planned, layout_with(planned, 2), (3, 5)) == [6, 7, 2, 3]


@pytest.mark.parametrize("numbers", [(), (0, 8), (True, 7), ("8",)])
def test_a_damaged_deal_is_refused(numbers: tuple[object, ...]) -> None:
    with pytest.raises(InputError, match="an event is damaged: deal is "):
        deals_in_effect([deal(50, *numbers)])


@pytest.mark.parametrize(
    "layout, deal, refused",
    [
        ("dp=2", (1, 3), ""),
        ("dp=2", (0, 4), "needs a"),
        ("dp=2,zero=2", (1, 3), "ZeRO 2"),
        ("dp=2,ep=2", (1, 3), "share out experts"),
        ("dp=2,ep=2", (2, 2), ""),
    ],
)
def test_which_deals_are_possible(layout: str, deal: tuple[int, ...], refused: str) -> None:
    found = deal_refusal(parse_layout(layout), deal)
    assert refused in found and bool(found) == bool(refused)


@pytest.mark.parametrize("numbers", [(2, 1), (9, 1)])
def test_a_deal_of_another_plan_is_refused(small: Small, numbers: tuple[int, ...]) -> None:
    plan = small.plan("dp=2,mbs=1")  # 8 samples
    check_deal(plan.layout, plan.workload, Dealt(after_step=50, deal=(5, 3)), "--memberships a")
    with pytest.raises(InputError, match="does not fit a batch of 8"):
        check_deal(plan.layout, plan.workload, Dealt(after_step=50, deal=numbers), "--memberships a")


@pytest.mark.parametrize(
    ("layout", "words"), [("dp=2,mbs=1,zero=2", "ZeRO 2"), ("dp=2,mbs=1,zero=3", "ZeRO 3"), ("dp=4,mbs=1", "is for 2 replicas")]
)
def test_a_deal_that_replicas_cannot_have_is_refused(small: Small, layout: str, words: str) -> None:
    plan = small.plan(layout)
    with pytest.raises(InputError, match=words):
        check_deal(plan.layout, plan.workload, Dealt(after_step=50, deal=(5, 3)), "--memberships a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"from_step": 2, "dp": 1}\n', "no membership from step 1"),
        ("[]\n", "no membership from step 1"),
        ("what\n", "not a JSON object"),
        ('{"from_step": 1, "dp": true}\n', "a membership is damaged: dp is True"),
        ('{"from_step": 1, "dp": 0}\n', "0 replicas from step 1"),
    ],
)
def test_a_wrong_list_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(InputError, match=words):
        read_memberships(tmp_path)


def test_a_missing_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read memberships"):
        read_memberships(tmp_path / "none.jsonl")
