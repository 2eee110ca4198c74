"""YAML for people: block style, long texts as they are, no anchors. Only what manifests need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

# Texts that YAML reads as they are, and as texts: no number, no date, no word such as `yes`, nothing that means something to YAML.
PLAIN = re.compile(r"[A-Za-z_./$(][A-Za-z0-9_./$()=@%+-]*(?: [A-Za-z0-9_./$()=@%+-]+)*")
WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "nan", "inf", "none"}


def yaml_text(*documents: Mapping[str, object]) -> str:
    """The documents as one text; keys keep their order."""
    return "---\n".join("\n".join([*_block(document, 0), ""]) for document in documents)


def _block(value: object, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{pad}{_scalar(str(key))}:", inner, depth)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _item(inner, depth)


def _entry(start: str, value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str) and "\n" in value and _fits_block(value):
        yield f"{start} |{'' if value.endswith(chr(10)) else '-'}"
        yield from (f"{'  ' * (depth + 1)}{line}".rstrip() for line in value.removesuffix("\n").split("\n"))
    elif isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        yield f"{start} {_scalar(value)}"
    elif not value:
        yield f"{start} {'{}' if isinstance(value, Mapping) else '[]'}"
    else:
        yield start
        yield from _block(value, depth + 1)


def _item(value: object, depth: int) -> Iterator[str]:
    """An entry of a list: its first line begins with the dash."""
    pad = "  " * depth
    if isinstance(value, str | int | float | bool) or value is None or not value:
        yield from _entry(f"{pad}-", value, depth)
        return
    first, *rest = _block(value, depth + 1)
    yield f"{pad}- {first[2 * depth + 2 :]}"
    yield from rest


def _fits_block(text: str) -> bool:
    """Whether a text can be written as it is: a line that begins with a space first, or an odd character, needs quotes."""
    return (
        not text.startswith((" ", "\n"))
        and all(line.isprintable() and line == line.rstrip() for line in text.split("\n"))
        and not text.endswith("\n\n")
    )


def _scalar(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    text = str(value)
    is_plain = PLAIN.fullmatch(text) and text.lower() not in WORDS and not re.fullmatch(r"\.?\d.*", text)
    return text if is_plain else json.dumps(text, ensure_ascii=False)
