"""Errors that a user can fix: a message, where the problem is, and how to fix it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# What a terminal would obey and nobody could read: control characters but tab and new line, marks that turn the direction of text,
# line separators, and halves of characters, which cannot even be written.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` as it may go to a terminal: what came from somebody's file must not move the cursor or hide a line."""
    return UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


class MeshwrightError(Exception):
    """A foreseen failure. `where` names the file and key; `fix` says what to do instead."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return printable("\n".join(lines))


class InputError(MeshwrightError):
    """What the user gave cannot be used as it stands."""


class FitError(MeshwrightError):
    """A layout does not fit the machine: in memory, or in the number of accelerators."""


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """At most three known names that are close to `name`, the closest first."""
    names = sorted(known)
    likeness = {other: difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio() for other in names}
    best = max(likeness.values(), default=0.0)
    return sorted((other for other in names if likeness[other] >= max(0.5, best - 0.1)), key=lambda other: -likeness[other])[:3]


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that offers the known names closest to `name`, or all of them when none is close."""
    names = sorted(known)
    if close := close_names(name, names):
        return f"did you mean {' or '.join(close)}?"
    return f"use one of {', '.join(names)}" if names else "nothing is known here"
