"""Unions count time once, however intervals lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.record.intervals import Union


def union(*intervals: tuple[float, float]) -> Union:
    columns = np.array(intervals, dtype=np.float64).reshape(-1, 2)
    return Union.of(columns[:, 0], columns[:, 1])


def test_nested_overlapping_and_touching_intervals_become_one() -> None:
    merged = union((5, 6), (0, 4), (1, 2), (3, 5), (8, 9))
    assert merged.start.tolist() == [0, 8] and merged.end.tolist() == [6, 9]
    assert merged.length == 7


def test_an_empty_union_covers_nothing() -> None:
    assert union().length == 0 and union().overlap(union((0, 1))) == 0 and union((0, 1)).overlap(union()) == 0


def test_what_a_union_covers_of_others() -> None:
    merged = union((0, 2), (4, 8))
    covered = merged.covers(np.array([-1.0, 1.0, 2.0, 5.0, 9.0]), np.array([1.0, 5.0, 4.0, 6.0, 12.0]))
    assert covered.tolist() == [1.0, 2.0, 0.0, 1.0, 0.0]


whole = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=25)


@given(whole, whole)
def test_unions_agree_with_counting_seconds_one_by_one(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    a, b = (union(*((start, start + length) for start, length in given)) for given in (some, others))
    seconds_a, seconds_b = ({at for start, length in given for at in range(start, start + length)} for given in (some, others))
    assert a.length == pytest.approx(len(seconds_a))
    assert a.overlap(b) == pytest.approx(len(seconds_a & seconds_b)) == pytest.approx(b.overlap(a))
