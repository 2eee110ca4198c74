"""Files damaged in small ways, the same for the same seed: a value that cannot be, a key that is gone, a byte that flipped."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e-300, 1e308, 2**31, 2**63, 2**64, 10**400, float("nan"), float("inf"), float("-inf"),
    "", " ", "x", "nan", "1e999", "\ud800", "\x1b[2J", "../../etc/passwd", "\u202e", "a" * 5000,
    [], {}, [[]], [None], [1, 2, 3], {"": {}}, {"a": 1},
)  # fmt: skip
NASTY_WORDS = (
    "",
    "0",
    "-1",
    "1e308",
    "nan",
    "inf",
    "-inf",
    "1e-320",
    str(2**63),
    str(2**64),
    '"x"',
    "[]",
    "{}",
    "true",
    '"\\u001b[2J"',
    "[[1]]",
)
NUMBER = re.compile(r"(?<![\w.\"-])-?\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w.])")


def in_json(text: bytes, rng: random.Random) -> bytes:
    """One place of a JSON value changed, or its text."""
    if rng.random() < 0.15:
        return in_bytes(text, rng)
    value = json.loads(text)
    holder, key = rng.choice(_places(value) or [(None, None)])
    if holder is None:
        value = rng.choice(NASTY)
    elif rng.random() < 0.25 and isinstance(holder, dict):
        del holder[key]
    else:
        holder[key] = rng.choice(NASTY)
    return json.dumps(value).encode()


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Where a value holds others: the holder, and the key or the number there."""
    found: list[tuple[Any, Any]] = []
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        found += [(value, key), *_places(inner)]
    return found


def in_lines(text: bytes, rng: random.Random) -> bytes:
    """One line of a file of JSON lines changed, doubled, moved or removed."""
    lines = text.split(b"\n")
    at = rng.randrange(max(len(lines) - 1, 1))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif kind == 2:
        lines[at] = in_bytes(lines[at], rng)
    elif lines[at].strip():
        lines[at] = in_json(lines[at], rng)
    return b"\n".join(lines)


def in_words(text: bytes, rng: random.Random) -> bytes:
    """One number or line of a file in words (TOML, CSV, a log) changed."""
    kind = rng.randrange(5)
    found = list(NUMBER.finditer(text.decode(errors="replace")))
    if kind < 3 and found:
        one = rng.choice(found)
        whole = text.decode(errors="replace")
        return (whole[: one.start()] + rng.choice(NASTY_WORDS) + whole[one.end() :]).encode()
    if kind == 3:
        lines = text.splitlines(keepends=True)
        del lines[rng.randrange(len(lines))]
        return b"".join(lines)
    return in_bytes(text, rng)


def in_bytes(text: bytes, rng: random.Random) -> bytes:
    """A byte flipped, a piece cut out or doubled, the end gone, or rubbish in between."""
    if not text:
        return b"\xff"
    at = rng.randrange(len(text))
    size = rng.randrange(1, 40)
    return (
        text[:at] + bytes([text[at] ^ (1 << rng.randrange(8))]) + text[at + 1 :],
        text[:at],
        text[:at] + text[at + size :],
        text[:at] + text[at : at + size] + text[at:],
        text[:at] + rng.randbytes(size) + text[at:],
        b"",
    )[rng.randrange(6)]


def in_manifest(text: bytes, rng: random.Random) -> bytes:
    """A value of a checkpoint's manifest changed, with the hash of the new content: which the hash does not show."""
    content = json.loads(text)
    holder, key = rng.choice([place for place in _places(content) if place[1] not in ("sha256", "blocks")])
    holder[key] = rng.choice(NASTY)
    content.pop("sha256", None)
    whole = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return json.dumps({**content, "sha256": hashlib.sha256(whole).hexdigest()}, sort_keys=True, separators=(",", ":")).encode()


Mutator = Callable[[bytes, random.Random], bytes]
BY_ENDING: dict[str, Mutator] = {".json": in_json, ".jsonl": in_lines}


def damaged(path: Path, content: bytes, rng: random.Random) -> bytes:
    """The content of a file as a fault may leave it, by the kind of the file."""
    return (in_manifest if path.name == "manifest.json" else BY_ENDING.get(path.suffix, in_words))(content, rng)
