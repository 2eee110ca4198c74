"""The advised interval between checkpoints, against the best one in a simulation of interruptions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meshwright.simulator.checkpoints import advice_errors, simulated_best_s


def test_the_advice_is_within_5_percent_of_the_simulated_best():
    errors = advice_errors(6, seed=3)
    assert np.abs(errors).max() < 0.05


class Quantiles:
    """In place of chance: the quantiles of the exponential distribution."""

    def standard_exponential(self, count: int) -> np.ndarray:
        return -np.log((np.arange(count) + 0.5) / count)


@pytest.mark.parametrize("between_s", [100.0, 1100.0, 50_000.0])
def test_without_chance_the_simulated_best_solves_the_equation_of_the_advice(between_s):
    # (1 - t / M) exp((t + c) / M) = 1
    t = simulated_best_s(10.0, between_s, Quantiles())  # type: ignore[arg-type]
    assert (1 - t / between_s) * math.exp((t + 10.0) / between_s) == pytest.approx(1.0, abs=0.1 * 10.0 / between_s)
