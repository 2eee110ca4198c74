"""The words of every `--json` output: for each key its type, unit and meaning, and for each kind of document its keys.

They are data, in `vocabulary.toml`. `python -m meshwright.say.schema` publishes the same as a JSON Schema.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.say.document import VERSION

FILE = Path(__file__).with_name("vocabulary.toml")
TYPES: dict[str, tuple[type, ...]] = {"number": (float, int), "integer": (int,), "text": (str,), "flag": (bool,)}
ANY = "any"
WORD = re.compile(r"(?P<type>[^,:]+)(, (?P<unit>[^:]+))?: (?P<meaning>.+\.)")


@dataclass(frozen=True, slots=True)
class Word:
    """A key: its type as `vocabulary.toml` writes it, its unit ("" where it has none) and its meaning."""

    type: str
    unit: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Shape:
    """An object: the keys that it always has, and those that it may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.required, *self.optional)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """All words, the shapes of objects, and the kinds of documents."""

    words: Mapping[str, Word]
    shapes: Mapping[str, Shape]
    kinds: Mapping[str, Shape]


@cache
def vocabulary() -> Vocabulary:
    """The published vocabulary."""
    table = tomllib.loads(FILE.read_text(encoding="utf-8"))
    words: dict[str, Word] = {}
    for section in table["words"].values():
        for key, text in section.items():
            assert key not in words, f"{key} is defined twice"
            words[key] = _word(key, text)
    texts = table["shapes"]
    shapes = {name: _shape(text, texts) for name, text in texts.items()}
    return Vocabulary(words, shapes, {kind: _shape(f"schema {text}", texts) for kind, text in table["kinds"].items()})


def _word(key: str, text: str) -> Word:
    found = WORD.fullmatch(text)
    assert found, f"{key}: cannot read {text!r}"
    return Word(found["type"], found["unit"] or "", found["meaning"])


def _shape(text: str, texts: Mapping[str, str]) -> Shape:
    """Keys in the order of the text; `@name` stands for the keys of another shape, `key?` may be absent."""
    required: list[str] = []
    optional: list[str] = []
    for item in text.split():
        if item.startswith("@"):
            inner = _shape(texts[item[1:]], texts)
            required += inner.required
            optional += inner.optional
        elif item.endswith("?"):
            optional.append(item[:-1])
        else:
            required.append(item)
    return Shape(tuple(required), tuple(optional))


def problems(document: Mapping[str, Any]) -> list[str]:
    """What in a document's JSON the vocabulary does not know, one sentence each: unknown keys, missing keys, wrong types."""
    known = vocabulary()
    parts = str(document.get("schema", "")).split("/")
    if len(parts) != 3 or parts[0] != "meshwright" or parts[1] not in known.kinds:
        return [f"schema is {document.get('schema')!r}"]
    wrong_version = [] if parts[2] == str(VERSION) else [f"version {parts[2]}, not {VERSION}"]
    return [*wrong_version, *_object_problems(document, known.kinds[parts[1]], parts[1])]


def _object_problems(value: Mapping[str, Any], shape: Shape, where: str) -> Iterator[str]:
    yield from (f"{where} lacks {key}" for key in shape.required if key not in value)
    for key, inner in value.items():
        if key not in shape.keys:
            yield f"{where}.{key} is not in the vocabulary of {where}"
        else:
            yield from _problems(inner, vocabulary().words[key].type, f"{where}.{key}")


def _problems(value: Any, wanted: str, where: str) -> Iterator[str]:
    if wanted == ANY or (value is None and wanted.endswith("?")):
        return
    wanted = wanted.removesuffix("?")
    if wanted[0] == "[" and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _problems(inner, wanted[1:-1], f"{where}[{number}]")
    elif wanted[0] == "{" and isinstance(value, dict):
        for key, inner in value.items():
            yield from _problems(inner, wanted[1:-1], f"{where}[{key!r}]")
    elif wanted in TYPES:
        if not isinstance(value, TYPES[wanted]) or (isinstance(value, bool) and wanted != "flag"):
            yield f"{where} is {value!r:.40}, not a {wanted}"
    elif wanted in vocabulary().shapes and isinstance(value, dict):
        yield from _object_problems(value, vocabulary().shapes[wanted], where)
    else:
        yield f"{where} is {value!r:.40}, not {wanted}"
