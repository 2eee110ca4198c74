"""Printing that the commands share: tables with units for people, JSON for programs. Colour only on a terminal."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from meshwright.errors import UNSEEN, printable

PIPED_WIDTH = 160  # columns where the output is not a terminal
GAP = 2  # spaces between columns


def console() -> Console:
    """A console on the present stdout: as wide as the terminal, or of a fixed width when piped."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, color_system=colours())


def colours() -> Literal["auto"] | None:
    """What rich may use: nothing where NO_COLOR is set, not even bold."""
    return None if os.environ.get("NO_COLOR") else "auto"


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title; a column whose name ends in `>` is flush right.

    Columns that a narrow terminal has no room for come below, beside the first column once more; only words are folded, never numbers.
    """
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    for number, block in enumerate(_blocks(columns, cells, console().width)):
        _print(_table(title if number == 0 else "", [columns[i] for i in block], [[row[i] for i in block] for row in cells]))


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
        title=Text(printable(title)) if title else None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        padding=(0, GAP, 0, 0),
    )
    for column in columns:
        right = column.endswith(">")
        table.add_column(Text(printable(column.removesuffix(">"))), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Indices of the columns that stand side by side, block after block: each block has the first column, and fits if it can."""
    least = [_least_width(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    blocks = [[0]]
    for i in range(1, len(columns)):
        if sum(least[j] + GAP for j in blocks[-1]) + least[i] > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(i)
    return blocks


def _least_width(column: str, cells: Sequence[str]) -> int:
    """Characters a column cannot do without: a number whole, of a text its longest word."""
    texts = [column.removesuffix(">"), *cells]
    if not column.endswith(">"):
        texts = [word for text in texts for word in text.split()]
    return max(map(len, texts), default=0)


def show_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns under a title."""
    table = Table(
        title=Text(printable(title)),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_header=False,
        padding=(0, 2, 0, 0),
    )
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(printable(name)), Text(printable(str(value))))
    _print(table)


def show_text(text: str) -> None:
    """Print a sentence, wrapped to the width."""
    console().print(Text(printable(text)))


def _print(table: Table) -> None:
    """Print without the spaces that would pad the last column, and with a blank line after."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        print(line.rstrip())
    print()


def show_json(value: object) -> None:
    """Print a value as JSON; what is not a number (unknown, unlimited) is null."""
    text = json.dumps(plain_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    print(UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # as JSON writes them itself


def plain_value(value: Any) -> Any:
    """A value in JSON's own types: dataclasses as tables, numpy's as Python's, nan and inf as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain_value(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return plain_value(value.tolist())
    if isinstance(value, Iterable):
        return [plain_value(inner) for inner in value]
    return str(value)
