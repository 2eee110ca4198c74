"""Checks that the numbers of a description can be used in arithmetic: no NaN, not negative, and not too large for a float."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from meshwright.errors import InputError

MOST = 2**53  # of counts: a float holds every whole number up to here
MOST_REAL, LEAST_REAL = 1e30, 1e-30  # sizes whose products and quotients a float still holds


def check_numbers(described: Any, where: str, *, unstated: Collection[str] = ()) -> None:
    """Raise an error if a number in a value, or in the values inside it, is not valid.

    Those in `unstated` may be infinite or NaN: unknown.
    """
    for name, value in _numbers(described):
        key = name.rpartition(".")[2]
        most = MOST if isinstance(value, int) else MOST_REAL
        can_be = value == 0 or LEAST_REAL <= value <= most
        if not can_be and not (key in unstated and (value != value or value > most)):
            raise InputError(
                f"{name} cannot be {str(value)[:40]}", where=f"{where}: {name}", fix=f"give 0, or a number from {LEAST_REAL:g} to {most:g}"
            )


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a value with its name; a mapping's keys count too."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value
    elif is_dataclass(value):
        for spec in fields(value):
            yield from _numbers(getattr(value, spec.name), f"{name}.{spec.name}" if name else spec.name)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(key, name)
            yield from _numbers(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _numbers(inner, f"{name}[{number}]")
