"""How often to save: worked by hand, against a simulation, and beside Young and Daly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.checkpoints import best_interval_s, daly_interval_s, goodput, young_interval_s


def test_young_and_daly_match_a_hand_worked_case():
    # 50 s to save, interrupted every 10,000 s: root(2 x 50 x 10,000) = 1,000; half = 0.0025: 1000 (1 + 0.05 / 3 + 0.0025 / 9) - 50
    assert young_interval_s(50.0, 10_000.0) == 1000.0
    assert daly_interval_s(50.0, 10_000.0) == pytest.approx(966.944, abs=1e-3)
    assert daly_interval_s(300.0, 100.0) == 100.0


def test_the_advised_interval_solves_its_equation():
    t = float(best_interval_s(50.0, 10_000.0))
    assert (1 - t / 10_000) * math.exp((t + 50) / 10_000) == pytest.approx(1.0, abs=1e-12)


@given(checkpoint=st.floats(0.1, 600), between=st.floats(600, 1e6), other=st.floats(0.3, 3.0))
def test_no_other_interval_does_better(checkpoint, between, other):
    best = float(best_interval_s(checkpoint, between))
    assert goodput(best, checkpoint, between, 300.0) >= goodput(best * other, checkpoint, between, 300.0) - 1e-12


def test_intervals_for_many_machines_come_at_once():
    each = [float(best_interval_s(*case)) for case in ((5.0, 1e4), (50.0, 1e5))]
    assert best_interval_s(np.array([5.0, 50.0]), np.array([1e4, 1e5])).tolist() == each


def test_free_checkpoints_are_saved_as_often_as_possible():
    assert best_interval_s(0.0, 1e5) == pytest.approx(0.0, abs=1e-9)


def test_a_machine_that_never_fails_never_saves():
    assert best_interval_s(50.0, math.inf) == math.inf


def test_the_closed_forms_agree_where_saving_is_cheap_and_young_is_the_longest():
    # Daly's is a series in root(c / 2M): at c / M = 1e-6 the next term is below 1e-6 of the interval
    best, daly, young = (float(f(1.0, 1e6)) for f in (best_interval_s, daly_interval_s, young_interval_s))
    assert daly == pytest.approx(best, rel=1e-6) and best < young < 1.001 * best


def test_goodput_matches_the_interruptions_drawn_one_by_one():
    # a run of up seconds keeps floor(up / (t + c)) intervals; a restart of d seconds is tried until no interruption falls into it
    interval_s, checkpoint_s, between_s, down_s = 500.0, 50.0, 2000.0, 300.0
    rng = np.random.default_rng(1)
    up_s = between_s * rng.standard_exponential(400_000)
    down = up_s < down_s  # interrupted while it restarts: nothing is kept
    kept_s = np.where(down, 0.0, np.floor((up_s - down_s) / (interval_s + checkpoint_s)) * interval_s)
    assert goodput(interval_s, checkpoint_s, between_s, down_s) == pytest.approx(kept_s.sum() / up_s.sum(), rel=0.01)


def test_goodput_without_interruptions_is_lost_to_saving_alone():
    assert goodput(900.0, 100.0, 1e12, 300.0) == pytest.approx(0.9, rel=1e-6)
