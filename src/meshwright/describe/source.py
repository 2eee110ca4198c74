"""Where a number comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """A text that leads to the number, and the date it was read or published."""

    text: str
    date: str

    def __str__(self) -> str:
        return f"{self.text} ({self.date})"


Sources = Mapping[str, Source]  # by the key of the entry that the source vouches for


def unsourced(table: Mapping[str, Any], sources: Iterable[str]) -> list[str]:
    """Dotted keys of the numbers in `table` that no source vouches for.

    A source covers its key and all keys below it; `default` covers every number of the entry.
    """
    vouched = set(sources)
    if "default" in vouched:
        return []
    return [key for key in _number_keys(table) if not any(key == v or key.startswith(f"{v}.") for v in vouched)]


def _number_keys(value: object, path: str = "") -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _number_keys(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _number_keys(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path
