"""What can go wrong in a way a user can mend: a message, where it stands, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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
        return "\n".join(lines)


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
