"""The noise of runs is that of runs of one layout; that of plans is the error of predicted differences."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.plan.noise import difference_errors, plan_noise, run_noise, run_spreads


def test_the_noise_is_that_of_the_carried_runs() -> None:
    assert len(run_spreads()) > 100
    assert np.mean(np.array(run_spreads()) <= run_noise()) == pytest.approx(0.9, abs=0.01)


def test_plans_are_equal_within_the_error_of_four_of_five_measured_differences() -> None:
    errors = np.array(difference_errors())
    assert len(errors) > 50 and (errors >= 0).all()
    assert np.mean(errors <= plan_noise()) == pytest.approx(0.8, abs=0.03)
    assert run_noise() < plan_noise() < 0.06  # a difference between two runs cannot be known better than one of them
