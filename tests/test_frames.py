"""Rows as a DataFrame: from columns or from rows, and words where pandas is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.frames import data_frame


def test_columns_and_rows_give_the_same_frame() -> None:
    pandas = pytest.importorskip("pandas")
    columns = data_frame({"step": np.array([1, 2]), "loss": np.array([3.0, np.nan])})
    rows = data_frame([{"step": 1, "loss": 3.0}, {"step": 2, "loss": None}])
    assert list(columns.columns) == ["step", "loss"] and columns["step"].dtype == np.int64
    pandas.testing.assert_frame_equal(columns, rows)


def test_a_row_that_lacks_a_column_has_a_gap_and_nothing_is_an_empty_frame() -> None:
    pytest.importorskip("pandas")
    frame = data_frame([{"a": 1.0}, {"b": 2.0}])
    assert list(frame.columns) == ["a", "b"] and frame.isna().sum().sum() == 2
    assert len(data_frame([])) == 0 == len(data_frame({}))


def test_without_pandas_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError) as caught:
        data_frame({"a": [1]})
    assert caught.value.what == "a DataFrame needs pandas" and caught.value.fix == "pip install pandas"
    assert caught.value.__suppress_context__
