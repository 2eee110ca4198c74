"""Text of other people's, made safe to print."""

from __future__ import annotations

REPLACED = "\N{REPLACEMENT CHARACTER}"


def printable(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return "".join(character if character.isprintable() else REPLACED for character in " ".join(text.split()))


def escaped(text: str) -> str:
    """The same as Markdown shows it literally."""
    safe = printable(text)
    for character in "\\`*_[]<>|#":
        safe = safe.replace(character, f"\\{character}")
    return safe
