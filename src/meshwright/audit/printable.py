"""Other people's text, made safe to print."""

from __future__ import annotations

from meshwright.errors import printable


def one_line(text: str) -> str:
    """The text on one line, without control characters of a terminal."""
    return printable(" ".join(text.split()))


def escaped(text: str) -> str:
    """The same, escaped so that Markdown shows it literally."""
    safe = one_line(text)
    for character in "\\`*_[]<>|#":
        safe = safe.replace(character, f"\\{character}")
    return safe
