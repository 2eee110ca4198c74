"""Arguments checked against their annotations: what passes, what does not, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.arguments import check_types, matches, typed, wording
from meshwright.errors import InputError


@pytest.mark.parametrize(
    ("value", "hint", "passes"),
    [
        (3, int, True),
        (np.int64(3), int, True),
        (True, int, False),
        (3.0, int, False),
        (3, float, True),
        (np.float64(3), float, True),
        ("3", float, False),
        (None, int | None, True),
        ("x", int | None, False),
        (("a", "b"), tuple[str, ...], True),
        (("a", 1), tuple[str, ...], False),
        (["a"], tuple[str, ...], False),
        ((1, "a"), tuple[int, str], True),
        ((1,), tuple[int, str], False),
        ({"a": 1}, Mapping[str, float], True),
        ({1: 1}, Mapping[str, float], False),
        ([1, 2], Sequence[int], True),
        ("12", Sequence[str], False),
        (len, Callable[[int], int], True),
        (3, Callable[[int], int], False),
        (object(), Any, True),
    ],
)
def test_a_value_is_of_a_type(value: object, hint: Any, passes: bool) -> None:
    assert matches(value, hint) is passes


def test_types_in_words() -> None:
    assert wording(int | None) == "a whole number or None" and wording(str | Path) == "a text or a Path"
    assert wording(Sequence[int]) == "a list of whole numbers" and wording(Callable[[], None]) == "a function"


def test_a_wrong_argument_is_named_with_its_value() -> None:
    @typed
    def doubled(number: int, *more: str, **options: Any) -> int:
        """Twice the number."""
        return 2 * number

    assert doubled(2, "a", other=None) == 4 and doubled.__doc__ == "Twice the number."
    with pytest.raises(InputError, match="number is 'x', not a whole number") as raised:
        doubled("x")  # type: ignore[arg-type]
    assert raised.value.where.endswith("doubled: number") and raised.value.fix == "give a whole number"
    with pytest.raises(InputError, match="more is 3, not a text"):
        doubled(2, "a", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing a required argument"):  # as Python says it: there is no value to speak of
        doubled()  # type: ignore[call-arg]


def test_a_wrong_field_is_named_with_its_value() -> None:
    @dataclass(frozen=True)
    class Point:
        x: float

        def __post_init__(self) -> None:
            check_types(self)

    Point(1)
    with pytest.raises(InputError, match="x is 'far away', not a number"):
        Point("far away")  # type: ignore[arg-type]


def test_an_unknown_keyword_names_the_function():
    @typed
    def doubled(number: int = 1) -> int:
        return 2 * number

    with pytest.raises(TypeError, match=r"doubled\(\): got an unexpected keyword argument 'numbre'"):
        doubled(numbre=3)  # type: ignore[call-arg]
