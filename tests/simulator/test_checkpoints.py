"""How often to save: worked by hand, against a simulation, and beside Young and Daly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.checkpoints import best_interval_s, daly_interval_s, goodput, young_interval_s
from meshwright.simulator.checkpoints import advice_errors


def test_young_and_daly_match_a_hand_worked_case():
    # 50 s to save, interrupted every 10,000 s: root(2 x 50 x 10,000) = 1,000; half = 0.0025: 1000 (1 + 0.05 / 3 + 0.0025 / 9) - 50
    assert young_interval_s(50.0, 10_000.0) == 1000.0
    assert daly_interval_s(50.0, 10_000.0) == pytest.approx(966.944, abs=1e-3)
    assert daly_interval_s(300.0, 100.0) == 100.0


def test_the_advised_interval_solves_its_equation():
    t = float(best_interval_s(50.0, 10_000.0))
    assert (1 - t / 10_000) * math.exp((t + 50) / 10_000) == pytest.approx(1.0, abs=1e-12)


@settings(deadline=None)
@given(checkpoint=st.floats(0.1, 600), between=st.floats(600, 1e6), other=st.floats(0.3, 3.0))
def test_no_other_interval_does_better(checkpoint, between, other):
    best = float(best_interval_s(checkpoint, between))
    assert goodput(best, checkpoint, between, 300.0) >= goodput(best * other, checkpoint, between, 300.0) - 1e-12


def test_the_advice_is_within_5_percent_of_the_simulated_best():
    errors = advice_errors(6, seed=3)
    assert np.abs(errors).max() < 0.05


def test_intervals_for_many_machines_come_at_once():
    assert best_interval_s(np.array([5.0, 50.0]), np.array([1e4, 1e5])).shape == (2,)
