"""Where a number comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A text that leads to the number, and the date it was read or published."""

    text: str
    date: str

    def __str__(self) -> str:
        return f"{self.text} ({self.date})"


Sources = Mapping[str, Source]  # by the key of the entry that the source vouches for
