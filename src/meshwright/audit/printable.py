"""Text of other people's, made safe to print."""

from __future__ import annotations

from meshwright.errors import printable


def one_line(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return printable(" ".join(text.split()))


def escaped(text: str) -> str:
    """The same as Markdown shows it literally."""
    safe = one_line(text)
    for character in "\\`*_[]<>|#":
        safe = safe.replace(character, f"\\{character}")
    return safe
