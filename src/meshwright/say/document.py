"""A document: the content of an output, separate from how it is shown.

A document has blocks for people (tables, pairs, text, notes) and values for programs. Both are made from the same numbers in one place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1  # of the JSON vocabulary: raised when a name changes its meaning or goes away


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a title; a column whose name ends in `>` is aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values under a title; each value may have a remark."""

    title: str
    rows: tuple[tuple[str, str, str], ...]  # name, value, remark


@dataclass(frozen=True, slots=True)
class Text:
    """A sentence or two."""

    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A note that a reader should know before trusting the numbers."""

    text: str


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines that must not be wrapped, such as layouts to be copied."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing as SVG or HTML; renderers that cannot show one leave it out."""

    markup: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A judged statement: its verdict, its subject, the reason and the arithmetic. Without `about` it judges the whole claim."""

    verdict: str
    about: str
    why: str
    arithmetic: tuple[str, ...] = ()


Block = Table | Pairs | Text | Note | Lines | Picture | Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The output about one subject."""

    kind: str  # what it is about: `forecast`, `plan`, `sweep`, ...; names the JSON schema
    title: str
    blocks: tuple[Block, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def with_files(self, written: Mapping[str, Path | None]) -> Document:
        """The document with the files that the command wrote, by what they are; a path of None was not written."""
        files = [{"what": what, "path": str(path)} for what, path in written.items() if path is not None]
        return dataclasses.replace(self, values={**self.values, "files": files})

    def to_json(self) -> dict[str, Any]:
        """The values in JSON's own types, with the name and version of their schema."""
        return {"schema": f"meshwright/{self.kind}/{VERSION}", **plain(self.values)}


def plain(value: Any) -> Any:
    """A value in the types of JSON: dataclasses as objects, numpy's numbers as Python's, NaN and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):  # numpy's scalars and arrays; its float64 is a float too, so they come first
        return plain(value.tolist())
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [plain(inner) for inner in value]
    return str(value)
