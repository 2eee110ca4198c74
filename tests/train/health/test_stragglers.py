"""Slow ranks are named soon, sound ones never, at the rates the module's text states."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from meshwright.train.health.stragglers import SlowRank, Stragglers, _median_of_others

STAGES = [0, 0, 0, 0, 1, 1, 1, 1]
PAIR = [0, 0]
LADDER = [0, 1, 2, 3]  # one rank on each stage
NOISE = [("normal", 0.05), ("normal", 0.10), ("heavy", 0.05), ("heavy", 0.10)]


def busy_s(seed: int, num_steps: int, num_ranks: int, kind: str, spread: float) -> NDArray[np.float64]:
    """Seconds of sound ranks: jitter, rare stalls of twice the time, lasting differences of 2 %."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_ranks)
    noise = rng.standard_normal(shape) if kind == "normal" else rng.standard_t(3, shape) / math.sqrt(3)
    stalls = np.where(rng.random(shape) < 0.003, 2.0, 1.0)
    return np.asarray(0.2 * np.exp(spread * np.clip(noise, -8, 8)) * stalls * np.linspace(0.99, 1.01, num_ranks))


def shared_cores_s(seed: int, num_steps: int, num_ranks: int) -> NDArray[np.float64]:
    """Seconds of sound ranks that other programs take cores from: now and then a rank is 1.2 to 2 times slower, for 4 steps in the mean."""
    rng = np.random.default_rng(seed)
    seconds = busy_s(seed, num_steps, num_ranks, "heavy", 0.10)
    for rank in range(num_ranks):
        begins = np.flatnonzero(rng.random(num_steps) < 0.03)
        for begin in begins:
            seconds[begin : begin + rng.geometric(0.25), rank] *= rng.uniform(1.2, 2.0)
    return seconds


def named(groups: list[int], seconds: NDArray[np.float64]) -> list[SlowRank]:
    detector = Stragglers(groups)
    return [one for step, row in enumerate(seconds, start=1) for one in detector.update(step, row)]


@pytest.mark.parametrize("kind, spread", NOISE)
@pytest.mark.parametrize("groups", [STAGES, PAIR], ids=["stages", "pair"])
def test_a_rank_30_percent_slower_is_named_within_50_steps(groups: list[int], kind: str, spread: float) -> None:
    num_found, wrong = 0, []
    for seed in range(100):
        seconds = busy_s(seed, 50, len(groups), kind, spread)
        seconds[:, 1] *= 1.3
        found = named(groups, seconds)
        num_found += any(one.rank == 1 for one in found)
        wrong += [one for one in found if one.rank != 1]
    assert num_found >= 99
    assert wrong == []


@pytest.mark.parametrize("groups", [STAGES, PAIR], ids=["stages", "pair"])
@pytest.mark.parametrize("slowdown, num_steps", [(2.0, 60), (1.3, 150)])
def test_a_slow_rank_on_shared_cores_is_named_and_no_other(groups: list[int], slowdown: float, num_steps: int) -> None:
    num_found = 0
    for seed in range(20):
        seconds = shared_cores_s(seed, num_steps, len(groups))
        seconds[:, 1] *= slowdown
        found = named(groups, seconds)
        assert [one for one in found if one.rank != 1] == []
        num_found += [one.recovered for one in found] == [False]  # and it is not taken back
    assert num_found >= 18


@pytest.mark.parametrize("groups", [STAGES, PAIR], ids=["stages", "pair"])
def test_shared_cores_make_few_ranks_slow(groups: list[int]) -> None:
    """Noise that lasts for steps is not independent; a rule that takes it to be names a rank every hundred steps, and takes it back."""
    found = [one for seed in range(8) for one in named(groups, shared_cores_s(seed, 1000, len(groups)))]
    assert len(found) <= 6, found  # named and taken back, in 8,000 steps


@pytest.mark.parametrize("slowdown, kind, spread", [(1.1, "normal", 0.03), (1.1, "heavy", 0.03), (2.0, "heavy", 0.10)])
@pytest.mark.parametrize("groups", [STAGES, PAIR], ids=["stages", "pair"])
def test_a_slow_rank_is_named_within_50_steps(groups: list[int], slowdown: float, kind: str, spread: float) -> None:
    num_found, wrong = 0, []
    for seed in range(100):
        seconds = busy_s(seed, 50, len(groups), kind, spread)
        seconds[:, 1] *= slowdown
        found = named(groups, seconds)
        num_found += any(one.rank == 1 for one in found)
        wrong += [one for one in found if one.rank != 1]
    assert num_found >= 99
    assert wrong == []


@pytest.mark.parametrize("kind, spread", NOISE)
def test_a_rank_10_percent_slower_is_named_later_if_ranks_jitter_more(kind: str, spread: float) -> None:
    found_at = []
    for seed in range(20):
        seconds = busy_s(seed, 300, len(STAGES), kind, spread)
        seconds[:, 5] *= 1.1
        found_at += [one.step for one in named(STAGES, seconds) if one.rank == 5 and not one.recovered][:1]
    assert len(found_at) >= 19
    assert np.median(found_at) <= 110


@pytest.mark.parametrize("groups", [STAGES, PAIR], ids=["stages", "pair"])
def test_nobody_is_named_in_a_hundred_short_sound_runs(groups: list[int]) -> None:
    drawn = [busy_s(1000 + seed, 50, len(groups), *NOISE[seed % len(NOISE)]) for seed in range(100)]
    drawn += [shared_cores_s(1000 + seed, 50, len(groups)) for seed in range(100)]
    assert [found for seconds in drawn for found in named(groups, seconds)] == []


@pytest.mark.parametrize("kind, spread", NOISE)
@pytest.mark.parametrize("groups", [STAGES, PAIR, LADDER], ids=["stages", "pair", "alone"])
def test_nobody_is_named_in_ten_thousand_sound_steps(groups: list[int], kind: str, spread: float) -> None:
    assert named(groups, busy_s(7, 10_000, len(groups), kind, spread)) == []


def test_a_rank_alone_on_its_stage_is_named_when_it_becomes_slower() -> None:
    num_found = 0
    for seed in range(20):
        seconds = busy_s(seed, 200, 4, "heavy", 0.10) * [1.0, 1.5, 0.7, 1.0]  # stages need not be alike
        seconds[150:, 2] *= 1.3
        found = named(LADDER, seconds)
        assert all((one.rank, one.peers) == (2, ()) and one.step > 150 for one in found)
        assert all("% slower than it was itself (no other rank does its work), over" in str(one) for one in found)
        num_found += len(found)
    assert num_found >= 19


def test_longer_batches_for_all_are_nobodys_fault() -> None:
    seconds = busy_s(3, 300, 4, "heavy", 0.05)
    seconds[100:] *= 2.0
    assert named(LADDER, seconds) == []


def test_stages_of_unlike_work_are_not_compared() -> None:
    seconds = busy_s(5, 300, 8, "heavy", 0.05)
    seconds[:, 4:] *= 2.0
    assert named(STAGES, seconds) == []


def test_a_name_says_how_slow_and_against_whom_and_is_taken_back() -> None:
    seconds = np.full((400, 8), 0.1)
    seconds[:200, 3] = 0.13
    slow, sound = named(STAGES, seconds)
    assert str(slow) == "rank 3 is 30 % slower than ranks 0, 1, 2, which do the same work, over 40 steps"
    assert str(sound) == "rank 3 is no longer slow: +0 % over 100 steps"
    assert 200 < sound.step <= 270


def test_one_rank_by_itself_is_fine() -> None:
    assert named([0], np.full((200, 1), 0.1)) == []


@pytest.mark.parametrize("row", [[0.1], [0.1, math.nan]])
def test_seconds_that_are_none_are_refused(row: list[float]) -> None:
    with pytest.raises(ValueError, match="busy seconds of step 1"):
        Stragglers(PAIR).update(1, row)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_the_median_of_the_others_is_that(values: list[float]) -> None:
    expected = [np.median(values[:i] + values[i + 1 :]) for i in range(len(values))]
    np.testing.assert_allclose(_median_of_others(np.array(values)), expected, atol=1e-9)
