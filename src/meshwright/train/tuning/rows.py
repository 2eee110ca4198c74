"""The rows of a data set: JSON lines, JSON arrays, Parquet and text files, each row with the place where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.train.data.sources import Source, find_sources, json_lines, parquet_rows

TEXT = "text"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data set, and where it stands: `row 7 of data.jsonl`."""

    values: Mapping[str, Any]
    where: str


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of a file, or of all files below a folder in the order of their names. A text file is one row with the key `text`."""
    for source in find_sources([path]):
        yield from _rows_of(source)
        source.check_unchanged()


def _rows_of(source: Source) -> Iterator[Row]:
    if source.format == "parquet":
        for number, values in enumerate(parquet_rows(source), start=1):
            yield Row(_without_absent(values), f"row {number} of {source.name}")
    elif source.format == "jsonl":
        for number, line in json_lines(source):
            yield _checked(_parsed(line, f"line {number} of {source.name}"), f"line {number} of {source.name}")
    elif source.path.suffix.lower() == ".json":
        for number, values in enumerate(_array(source), start=1):
            yield _checked(values, f"row {number} of {source.name}")
    else:
        yield Row({TEXT: _text(source)}, source.name)


def _array(source: Source) -> list[Any]:
    """The rows of a JSON file that holds a list."""
    values = _parsed(source.path.read_bytes(), source.name)
    if not isinstance(values, list):
        fix = "write a list of objects, or one object in each line of a .jsonl file"
        raise InputError(f"the file holds a {type(values).__name__}, not a list", where=source.name, fix=fix)
    return values


def _parsed(content: bytes, where: str) -> Any:
    """The value in a text, which may begin with a byte order mark, as programs on Windows write it."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """The object of these keys; JSON lets a key stand twice, and then one of the values would be lost silently."""
        values = dict(pairs)
        if len(values) < len(pairs):
            twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
            raise InputError(f"the key {twice!r} stands twice in one object", where=where, fix="leave one of them out")
        return values

    try:
        return json.loads(content.decode("utf-8-sig"), object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=where, fix="write one JSON object in each line, in UTF-8") from None


def _checked(values: Any, where: str) -> Row:
    if not isinstance(values, dict):
        raise InputError(f"the row is a {type(values).__name__}, not an object with keys", where=where, fix="write an object: {...}")
    return Row(values, where)


def _text(source: Source) -> str:
    try:
        return source.path.read_bytes().decode()
    except UnicodeDecodeError as error:
        fix = "convert the file, for example with iconv -f LATIN1 -t UTF-8"
        raise InputError(f"byte {error.start} is not UTF-8 ({error.reason})", where=source.name, fix=fix) from None


def _without_absent(value: Any) -> Any:
    """The same without keys whose value is None: Parquet gives every object of a column the keys of all of them."""
    if isinstance(value, dict):
        return {key: _without_absent(held) for key, held in value.items() if held is not None}
    return [_without_absent(held) for held in value] if isinstance(value, list) else value
