"""Documents: values of any kind in JSON's own types, under the name of their schema."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.say.document import VERSION, Document, plain


@dataclass(frozen=True)
class Size:
    name: str
    num_bytes: float
    of: tuple[int, ...] = ()


JSON_TYPES = (str, int, float, bool, type(None), list, dict)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.floats().map(np.float64),
    st.floats(width=32).map(np.float32),
    st.integers(0, 9).map(np.int64),
    st.booleans().map(np.bool_),
    st.lists(st.floats(), max_size=3).map(np.array),
    st.builds(Size, st.text(max_size=3), st.floats()),
    st.just(Path("a/b")),
)


VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def assert_plain(value: Any) -> None:
    assert type(value) in JSON_TYPES
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)


@given(VALUES)
def test_any_value_becomes_one_of_jsons_own_types(value: Any) -> None:
    made = plain(value)
    assert_plain(made)
    assert json.loads(json.dumps(made, allow_nan=False)) == made == plain(made)


def test_values_keep_their_names_and_numbers() -> None:
    assert plain(Size("a", np.float64(1.5), (1, 2))) == {"name": "a", "num_bytes": 1.5, "of": [1, 2]}
    assert plain({"a": float("inf"), "b": np.array([1.0, np.nan]), 3: {4}}) == {"a": None, "b": [1.0, None], "3": [4]}
    assert plain([True, np.bool_(False), 1, "1", None]) == [True, False, 1, "1", None]


def test_a_document_as_json_names_its_schema(example: Callable[..., Document]) -> None:
    assert example("<b>").to_json() == {"schema": f"meshwright/example/{VERSION}", "word": "<b>", "count": 2, "unknown": None}


def test_a_type_is_no_value_and_what_json_does_not_know_is_text() -> None:
    assert plain(Size) == str(Size) and plain(Path("a/b")) == "a/b" and plain(1 + 2j) == "(1+2j)"
    assert plain(np.array(2.5)) == 2.5 and plain(range(3)) == [0, 1, 2] and plain(iter("ab")) == ["a", "b"]
    assert plain(-math.inf) is None and plain(np.float32("nan")) is None
