"""Rows as a pandas DataFrame, for notebooks; pandas is not part of the base install."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


def data_frame(content: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> DataFrame:
    """A DataFrame of columns by name, or of rows; an InputError that says how to get pandas where it is not installed."""
    try:
        import pandas
    except ImportError:
        raise InputError("a DataFrame needs pandas", where="this Python", fix="pip install pandas") from None
    return pandas.DataFrame(content)
