"""Intervals hold what they claim, and correlated steps count for less."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.report.noise import correlation_steps, median_draws, noise_of


def correlated(count: int, memory: float, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Steps around 1 s of which each keeps a share of the one before."""
    values = np.empty(count)
    values[0] = rng.standard_normal()
    for i in range(1, count):
        values[i] = memory * values[i - 1] + np.sqrt(1 - memory**2) * rng.standard_normal()
    return 1 + 0.01 * values


@pytest.mark.parametrize("memory, expected", [(0.0, 1.0), (0.5, 3.0), (0.8, 9.0)])
def test_the_correlation_of_steps_with_memory_is_found(memory: float, expected: float) -> None:
    # A first-order process: (1 + memory) / (1 - memory).
    assert correlation_steps(correlated(20_000, memory, np.random.default_rng(1))) == pytest.approx(expected, rel=0.2)


def test_one_enormous_stall_does_not_hide_the_correlation() -> None:
    steps = correlated(5_000, 0.8, np.random.default_rng(2))
    steps[777] = 1000.0
    assert correlation_steps(steps) > 5


@pytest.mark.parametrize("memory", [0.0, 0.7])
def test_the_interval_holds_the_true_median_about_57_times_in_sixty(memory: float) -> None:
    inside = 0
    for seed in range(60):
        noise = noise_of(correlated(400, memory, np.random.default_rng(seed)))
        assert noise is not None
        inside += noise.low_s <= 1.0 <= noise.high_s
    assert 51 <= inside <= 60


def test_correlated_steps_have_a_higher_floor() -> None:
    free, bound = (noise_of(correlated(1000, memory, np.random.default_rng(3))) for memory in (0.0, 0.9))
    assert free is not None and bound is not None
    # Independent: 1.96 * sqrt(2) * 1.2533 * 1 % / sqrt(1000), the standard error of a median.
    assert free.floor_pct == pytest.approx(0.11, rel=0.3)
    assert bound.floor_pct > 2.5 * free.floor_pct and bound.effective_steps < 0.2 * free.effective_steps


def test_equal_steps_have_no_noise_and_few_steps_no_answer() -> None:
    still = noise_of(np.full(50, 0.5))
    assert still is not None and (still.low_s, still.high_s, still.floor_pct, still.correlation_steps) == (0.5, 0.5, 0.0, 1.0)
    assert noise_of(np.full(7, 0.5)) is None


def test_the_same_steps_give_the_same_interval_and_long_series_are_folded() -> None:
    steps = correlated(50_000, 0.3, np.random.default_rng(4))
    one, other = noise_of(steps), noise_of(steps)
    assert one is not None and other is not None and (one.low_s, one.high_s) == (other.low_s, other.high_s)
    draws = median_draws(steps, 1.9, np.random.default_rng(0))
    assert float(np.median(draws)) == pytest.approx(float(np.median(steps)), rel=1e-4)
