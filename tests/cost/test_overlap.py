"""What compute does not hide: numbers worked by hand, and laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cost.overlap import exposed_s

times = st.floats(0.0, 1e3)
pieces = st.integers(1, 100)
shares = st.floats(0.0, 1.0)


@pytest.mark.parametrize(
    "communication_s, hiding_s, num_pieces, contention, expected_s",
    [
        (10.0, 6.0, 5, 0.0, 4.0),  # six of ten hide
        (10.0, 6.0, 5, 0.5, 4.0 + 0.5 * 6.0),  # and cost half their time in slower compute
        (10.0, 100.0, 5, 0.0, 2.0),  # the last of five pieces has nothing to hide behind
        (10.0, 100.0, 1, 0.0, 10.0),  # one piece is the last piece
        (10.0, 0.0, 5, 0.0, 10.0),
        (0.0, 5.0, 5, 0.5, 0.0),
    ],
)
def test_exposed_time(communication_s, hiding_s, num_pieces, contention, expected_s):
    assert exposed_s(communication_s, hiding_s, num_pieces, contention) == pytest.approx(expected_s)


@given(times, times, pieces, shares)
def test_no_less_than_nothing_and_no_more_than_all_is_exposed(communication_s, hiding_s, num_pieces, contention):
    assert 0.0 <= exposed_s(communication_s, hiding_s, num_pieces, contention) <= communication_s * (1 + 1e-12)


@given(times, times, times, pieces, shares)
def test_more_compute_never_exposes_more_and_never_hides_more_than_it_takes(communication_s, hiding_s, more_s, num_pieces, contention):
    before, after = (exposed_s(communication_s, hiding_s + extra_s, num_pieces, contention) for extra_s in (0.0, more_s))
    assert after <= before + 1e-9
    assert before - after <= more_s + 1e-9  # so a step never gets shorter when its compute gets longer


@given(times, times, pieces)
def test_with_full_contention_hiding_gains_nothing(communication_s, hiding_s, num_pieces):
    assert exposed_s(communication_s, hiding_s, num_pieces, 1.0) == pytest.approx(communication_s)
