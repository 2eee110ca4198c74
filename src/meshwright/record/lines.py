"""One JSON object per line, written and read.

Numbers that JSON cannot express are written as text, and fields are checked for their type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.errors import MeshwrightError

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON has no such numbers, so they are written as text


def line_of(entry: Mapping[str, Any]) -> bytes:
    """`entry` as a line of strict JSON, with a newline."""
    try:
        text = json.dumps(entry, allow_nan=False)
    except (ValueError, TypeError):
        text = json.dumps(_finite(entry), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    """`value` with plain numbers instead of numpy's, and text for numbers that JSON cannot express."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, np.generic | np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def object_in(line: bytes) -> dict[str, Any]:
    """The JSON object in a line; ValueError if there is none."""
    try:
        entry = json.loads(line)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(entry, dict):
        raise ValueError("it is not a JSON object")
    return entry


def one_line(error: BaseException) -> str:
    """Why a line or a file could not be read, on one line."""
    what = error.what if isinstance(error, MeshwrightError) else str(error)
    return what.replace("\n", " ")


def whole_number(entry: Mapping[str, Any], name: str) -> int:
    """The field `name`, which must be a whole number of at most 64 bits; otherwise ValueError."""
    value = entry.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
        raise ValueError(f"{name} is {'missing' if value is None else repr(value)[:40]}")
    return value


def number(entry: Mapping[str, Any], name: str) -> float | None:
    """The field `name`, or None if it is null or absent; ValueError if it is not a number."""
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, str) and value in NON_FINITE:
        return NON_FINITE[value]
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.40}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} is too large a number") from None


def required_number(entry: Mapping[str, Any], name: str) -> float:
    """The field `name`; ValueError if it is absent or not a number."""
    value = number(entry, name)
    if value is None:
        raise ValueError(f"{name} is missing")
    return value
