"""Functions that all commands print with: tables with units for people, JSON for programs. Colour only on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Literal

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meshwright.errors import UNSEEN, InputError, printable
from meshwright.say.document import Block, Document, Finding, Lines, Note, Pairs
from meshwright.say.document import Table as SayTable
from meshwright.say.document import Text as SayText
from meshwright.say.document import plain as plain_value

PIPED_WIDTH = 160  # columns if the output is not a terminal
GAP = 2  # spaces between columns
VERDICT_COLOURS = {
    "consistent": "green",
    "unknown": "cyan",
    "unsupported": "yellow",
    "misleading": "dark_orange",
    "implausible": "red",
    "impossible": "bold red",
}
# Characters of drawings, and what replaces them in an output that has only ASCII: parts of a bar, and heights of a strip.
PLAIN = {
    **dict.fromkeys(map(ord, "\u258f\u258e\u258d\u258c\u258b\u258a\u2589"), ""),
    **dict(zip(map(ord, "\u2581\u2582\u2583\u2584\u2585\u2586\u2587"), ".:-=+*#", strict=True)),
    ord("\u2588"): "#",
}


def console() -> Console:
    """A console on the present stdout: as wide as the terminal, or of a fixed width when piped."""
    width = None if sys.stdout.isatty() else PIPED_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, color_system=colours())


def colours() -> Literal["auto"] | None:
    """The colours that rich may use: none if NO_COLOR is set, not even bold."""
    return None if os.environ.get("NO_COLOR") else "auto"


def check_format(*, as_json: bool, as_markdown: bool) -> None:
    """Raise an error if two formats are asked for: standard output can have only one."""
    if as_json and as_markdown:
        raise InputError("--json and --markdown are both given", where="--json, --markdown", fix="give one of them")


def show(document: Document, *, as_json: bool) -> None:
    """Print a document: as text for people, or its values as JSON."""
    if as_json:
        show_json(document.to_json())
        return
    after_text = False
    for block in document.blocks:
        is_text = isinstance(block, SayText | Note) or (isinstance(block, Finding) and not block.about)
        if after_text and not is_text:
            print()
        _show_block(block)
        after_text = is_text


def _show_block(block: Block) -> None:
    if isinstance(block, SayTable):
        show_table(block.title, block.columns, block.rows)
    elif isinstance(block, Pairs):
        width = max((len(value) for _, value, remark in block.rows if remark), default=0)
        show_pairs(block.title, ((name, f"{value:<{width}}  {remark}".rstrip()) for name, value, remark in block.rows))
    elif isinstance(block, Finding):
        show_finding(block)
    elif isinstance(block, Lines):
        print(encodable(printable("\n".join([block.title, *block.lines, ""]))))
    elif isinstance(block, SayText | Note):
        show_text(f"note: {block.text}" if isinstance(block, Note) else block.text)


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under a title; a column whose name ends in `>` is aligned right.

    Columns that do not fit a narrow terminal are printed below, with the first column repeated; words are wrapped, numbers never.
    """
    cells = [[encodable(printable(str(cell))) for cell in row] for row in rows]
    _print_title(title)
    for block in _blocks(columns, cells, console().width):
        _print(_table([columns[i] for i in block], [[row[i] for i in block] for row in cells]))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(
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
    """Blocks of column indices; the columns of a block are printed side by side. Each block has the first column, and fits if possible."""
    least = [_least_width(column, [row[i] for row in rows]) for i, column in enumerate(columns)]
    blocks = [[0]]
    for i in range(1, len(columns)):
        if sum(least[j] + GAP for j in blocks[-1]) + least[i] > width and len(blocks[-1]) > 1:
            blocks.append([0])
        blocks[-1].append(i)
    return blocks


def _least_width(column: str, cells: Sequence[str]) -> int:
    """The smallest width of a column in characters: a whole number, or the longest word of a text."""
    texts = [column.removesuffix(">"), *cells]
    if not column.endswith(">"):
        texts = [word for text in texts for word in text.split()]
    return max(map(len, texts), default=0)


def show_pairs(title: str, pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns under a title."""
    _print_title(title)
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(Text(printable(name)), Text(printable(str(value))))
    _print(table)


def show_finding(block: Finding) -> None:
    """Print a finding, with its verdict in colour on a terminal and the arithmetic indented below."""
    verdict = (block.verdict, VERDICT_COLOURS.get(block.verdict, "bold"))
    if not block.about:
        _print_indented(Text.assemble(verdict, printable(f": {block.why}")))
        return
    _print_indented(Text.assemble(verdict, "  ", (printable(block.about), "bold"), printable(f": {block.why}")), indent=2)
    for line in block.arithmetic:
        _print_indented(Text(printable(line), style="dim"), indent=6)
    print()


def _print_indented(text: Text, indent: int = 0) -> None:
    """Print wrapped text with all lines indented and no trailing spaces."""
    out = console()
    with out.capture() as captured:
        out.print(Padding(text, (0, 0, 0, indent)))
    for line in captured.get().rstrip("\n").split("\n"):
        print(encodable(line.rstrip()))


def show_text(text: str) -> None:
    """Print a sentence, wrapped to the width."""
    console().print(Text(encodable(printable(text))))


def _print_title(title: str) -> None:
    """Print a title on its own: inside a table it would be wrapped to the width of the table."""
    if title:
        console().print(Text(encodable(printable(title)), style="bold"))


def encodable(text: str) -> str:
    """The text in characters that the output can show: drawn bars become `#`, heights of a strip become `.:-=+*#%`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.translate(PLAIN).encode("ascii", "replace").decode("ascii")
    return text


def _print(table: Table) -> None:
    """Print without trailing spaces, and with a blank line after it."""
    out = console()
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().rstrip("\n").split("\n"):
        print(encodable(line.rstrip()))
    print()


def show_json(value: object) -> None:
    """Print a value as JSON; NaN and infinity (unknown, unlimited) become null."""
    text = json.dumps(plain_value(value), indent=2, ensure_ascii=False, allow_nan=False)
    print(UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text))  # in the way that JSON escapes characters
