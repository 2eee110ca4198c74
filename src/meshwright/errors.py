"""Errors that a user can fix: a message, where the problem is, and how to fix it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable

# Characters that must not be printed: control characters except tab and new line, marks that change the direction of text,
# line separators, and unpaired surrogates, which cannot be encoded.
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def printable(text: str) -> str:
    """`text` made safe for a terminal: text from a user's file must not move the cursor or hide a line."""
    return UNSEEN.sub(lambda found: f"\\x{ord(found[0]):02x}" if ord(found[0]) < 256 else f"\\u{ord(found[0]):04x}", text)


# A placeholder for an argument in the text of an error, until the reader is known: name, value as text, value in Python's notation.
_ARGUMENT = re.compile("\x02([a-z_]+)\x1f([^\x03]*)\x1f([^\x03]*)\x03")


def argument(name: str, value: object = None) -> str:
    """An argument for the text of an error: Python users read `links_lost=2`, users of the command line `--links-lost 2`.

    The text is only for the parts of a `MeshwrightError`, which writes it out.
    """
    values = ("", "") if value is None else (str(value), repr(value))
    return f"\x02{name}\x1f{UNSEEN.sub('?', values[0])}\x1f{UNSEEN.sub('?', values[1])}\x03"


def in_python(name: str, _text: str, value: str) -> str:
    """An argument with its value, as a call has it."""
    return f"{name}={value}" if value else name


class MeshwrightError(Exception):
    """An expected error. `where` names the file and the key; `fix` says what to do instead."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self._marked = (what, where, fix)  # with arguments not written out yet
        self.what, self.where, self.fix = (_written(text, in_python) for text in self._marked)
        super().__init__(self.what)

    def __str__(self) -> str:
        return message_of(self, in_python)


class InputError(MeshwrightError):
    """The user's input cannot be used. The text says what is wrong, where, and how to fix it."""


class TooFewNodesError(MeshwrightError):
    """Nodes of a run did not come, or did not come back. With more nodes the same command may go on."""

    EXIT_STATUS = 69  # of its own (sysexits' EX_UNAVAILABLE): a job on Slurm is queued again for it


class FitError(MeshwrightError):
    """A layout does not fit the machine: it needs more memory or more accelerators than there are."""


def message_of(error: MeshwrightError, name_of: Callable[[str, str, str], str]) -> str:
    """The message of an error, its arguments named by a function of their name, their value as text, and as Python writes it."""
    what, where, fix = (_written(text, name_of) for text in error._marked)
    lines = [what]
    if where:
        lines.append(f"  where: {where}")
    if fix:
        lines.append(f"  fix:   {fix}")
    return printable("\n".join(lines))


def _written(text: str, name_of: Callable[[str, str, str], str]) -> str:
    return _ARGUMENT.sub(lambda found: name_of(*found.groups()), text)


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
