"""Slow links are named by their ranks and hosts, and not taken for slow ranks or the reverse."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.health.slow_links import SlowLink, SlowLinks, groups_along, judged_axes, link_columns
from meshwright.train.membership import seats_of

LAYOUT = Layout(tp=2, pp=2, dp=2)
EACH = tuple(f"h{rank}" for rank in range(8))
PAIRS = tuple(f"h{rank // 2}" for rank in range(8))
USUAL_S = {"tp": 0.05, "pp": 0.03, "dp": 0.2}
STEP_S = 1.0
JITTER = 0.025  # of an exchange


def everyones(rng: np.random.Generator, slower: Mapping[tuple[int, ...], float], slow_rank: int = -1) -> NDArray[np.float64]:
    """What all ranks tell about one step: waits for others, and exchanges that jitter."""
    columns = {name: number for number, name in enumerate((*PARTS, *link_columns(LAYOUT)))}
    table = np.zeros((LAYOUT.num_ranks, len(columns)))
    for axis in judged_axes(LAYOUT):
        for group in groups_along(LAYOUT, axis):
            seconds = USUAL_S[axis] * slower.get(group, 1.0) * np.exp(JITTER * rng.standard_normal())
            if axis != "pp":
                others = rng.exponential(0.3, len(group)) * ([rank != slow_rank for rank in group] if slow_rank in group else 1.0)
                table[list(group), columns[f"link_{axis}"]] = seconds + others - others.min()
                continue
            first, second = group
            held = rng.uniform(0.5, 0.6) * (2.0 if slow_rank == second else 1.0)
            table[second, columns["pp_held"]], table[second, columns["pp_wait_before"]] = held, 0.2 + seconds
            table[first, columns["pp_away"]], table[first, columns["pp_wait_after"]] = held + 2 * seconds, 0.2 + seconds
    return table


def named(
    detector: SlowLinks, num_steps: int, slower: Mapping[tuple[int, ...], float], slow_rank: int = -1, seed: int = 0, since: int = 1
) -> list[SlowLink]:
    rng = np.random.default_rng(seed)
    rows = [everyones(rng, slower if step >= since else {}, slow_rank) for step in range(1, num_steps + 1)]
    return [one for step, row in enumerate(rows, start=1) for one in detector.update(step, row, STEP_S)]


@pytest.mark.parametrize("axis", ["tp", "pp", "dp"])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_a_slow_link_is_named_within_50_steps_and_no_other(axis: str, factor: float) -> None:
    group = groups_along(LAYOUT, axis)[1]
    for seed in range(10):
        (found,) = named(SlowLinks(LAYOUT, EACH), 50, {group: factor}, seed=seed)
        assert (found.axis, found.groups, found.hosts) == (axis, (group,), tuple(f"h{rank}" for rank in group))
        assert found.slowdown == pytest.approx(factor, rel=0.05) and set(found.peers) < set(groups_along(LAYOUT, axis))


@pytest.mark.parametrize("slow_rank", [-1, 2, 5])
def test_a_slow_rank_is_no_slow_link(slow_rank: int) -> None:
    assert [one for seed in range(10) for one in named(SlowLinks(LAYOUT, EACH), 300, {}, slow_rank, seed)] == []


def test_the_link_of_a_host_is_told_from_others_once_there_is_something_to_compare_with() -> None:
    """Both stages of a pipeline are on one side of the slow link each: only the exchange of gradients tells on which."""
    slow = {group: 2.0 for axis in ("pp", "dp") for group in groups_along(LAYOUT, axis) if {2, 3} & set(group)}
    early = named(SlowLinks(LAYOUT, PAIRS), 50, slow)
    assert [(one.axis, one.groups, one.hosts) for one in early] == [("pp", ((0, 2), (1, 3)), ("h0", "h1"))]
    assert str(early[0]).startswith(
        "the link between hosts h0 and h1 is slow: the pipeline exchange between ranks 0, 2 and of ranks 1, 3 takes "
    )
    late = named(SlowLinks(LAYOUT, PAIRS), 300, slow, since=150)
    assert ("h1",) in [one.hosts for one in late]
    assert all("h1" in one.hosts and set(one.groups) <= slow.keys() for one in late)


def test_what_slows_all_groups_alike_is_found_by_their_own_first_steps() -> None:
    """The uplink of a rack: every exchange of gradients crosses it."""
    found = named(SlowLinks(LAYOUT, PAIRS), 250, dict.fromkeys(groups_along(LAYOUT, "dp"), 2.0), since=150)
    assert [(one.axis, len(one.groups), one.peers) for one in found] == [("dp", 4, ())]
    assert found[0].hosts == ("h0", "h1", "h2", "h3") and "than in the first steps" in str(found[0])


def test_a_link_that_is_normal_again_is_said_to_be() -> None:
    group, detector, rng = (0, 4), SlowLinks(LAYOUT, EACH), np.random.default_rng(1)
    found = [one for step in range(1, 400) for one in detector.update(step, everyones(rng, {group: 2.0} if step < 60 else {}), STEP_S)]
    assert [(one.groups, one.recovered) for one in found] == [((group,), False), ((group,), True)]
    assert str(found[1]).startswith("the data-parallel exchange between ranks 0, 4 is no longer slow: ")


def test_groups_on_other_tiers_are_not_compared_and_none_within_a_host_of_processors() -> None:
    far = dict.fromkeys(groups_along(LAYOUT, "pp")[:2], 3.0)
    assert [one.axis for one in named(SlowLinks(LAYOUT, EACH), 50, far)] == ["pp"]
    across = Layout(tp=2, pp=2, dp=2, order=("tp", "pp", "cp", "dp"))
    detector = SlowLinks(across, EACH, (2, 4, 8))
    assert all(len(axis.groups) == 4 for axis in detector.axes)
    assert SlowLinks(LAYOUT).axes == [] and len(SlowLinks(LAYOUT, within_hosts=True).axes) == 3


def test_ranks_that_were_numbered_anew_are_where_they_were() -> None:
    planned, now = Layout(pp=2, dp=4), Layout(pp=2, dp=3)  # pipelines of ranks 0-1, 2-3, 4-5 and 6-7 on nodes of three: the second is cut
    for seats, alike in (((), {0: [2], 1: [], 2: [0]}), (seats_of(planned, now, (0, 2, 3)), {0: [1, 2], 1: [0, 2], 2: [0, 1]})):
        (pipelines,) = [axis for axis in SlowLinks(now, EACH[:6], (3,), seats=seats).axes if axis.axis == "pp"]
        assert pipelines.peers == alike


def test_what_shows_little_of_the_step_is_not_judged() -> None:
    slow, tiny = {(0, 4): 2.0}, 1000 * STEP_S
    rng, detector = np.random.default_rng(0), SlowLinks(LAYOUT, EACH)
    assert [one for step in range(1, 60) for one in detector.update(step, everyones(rng, slow), tiny)] == []


def test_groups_of_every_axis() -> None:
    assert groups_along(Layout(pp=3), "pp") == [(0, 1), (1, 2)]
    assert groups_along(Layout(cp=2, dp=2), "dp") == [(0, 1, 2, 3)]
    layout = Layout(dp=4, pp=2, ep=2)
    experts = groups_along(layout, "ep")
    assert sorted(rank for group in experts for rank in group) == list(range(8)) and {len(group) for group in experts} == {2}
    assert all(len({layout.coordinate(rank)["pp"] for rank in group}) == 1 for group in experts)
    assert link_columns(Layout(dp=2, pp=2)) == ("link_dp", "pp_away", "pp_held", "pp_wait_after", "pp_wait_before")
    assert link_columns(Layout()) == ()
