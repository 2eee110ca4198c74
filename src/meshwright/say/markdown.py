"""A document as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from meshwright.say.document import Block, Document, Finding, Lines, Note, Pairs, Picture, Table, Text

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")
BEGINNING = re.compile(r"(\d*)[-+=.)](?=[-=\s]|$)")  # of a list, a rule or a heading


def markdown(document: Document) -> str:
    """The document, whole."""
    lines = [f"## {escaped(document.title)}", ""]
    for block in document.blocks:
        lines += _block(block, document.title)
    return "\n".join(lines) + "\n"


def escaped(text: object) -> str:
    """Text that Markdown shows as it is, on one line."""
    return SPECIAL.sub(r"\\\1", " ".join(str(text).splitlines())).replace("&", "&amp;")


def paragraph(text: object) -> str:
    """The same for text that begins a line: no list, rule, heading or block of code."""
    shown = escaped(text).lstrip()
    found = BEGINNING.match(shown)
    return f"{found[1]}\\{shown[found.end(1) :]}" if found else shown


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table; a column whose name ends in `>` is aligned to the right."""
    yield "| " + " | ".join(escaped(column.removesuffix(">")) for column in columns) + " |"
    yield "| " + " | ".join("---:" if column.endswith(">") else "---" for column in columns) + " |"
    for row in rows:
        yield "| " + " | ".join(escaped(cell) for cell in row) + " |"
    yield ""


def _block(block: Block, heading: str) -> Iterator[str]:
    if isinstance(block, Picture):
        return
    if isinstance(block, Text | Note):
        yield paragraph(f"{'Note: ' if isinstance(block, Note) else ''}{block.text}")
        yield ""
        return
    if isinstance(block, Finding):
        about = f" {escaped(block.about)}" if block.about else ""
        yield f"**{escaped(block.verdict.capitalize())}**{about}: {escaped(block.why)}"
        yield ""
        if block.arithmetic:
            yield from (f"- {paragraph(line)}" for line in block.arithmetic)
            yield ""
        return
    if block.title and block.title != heading:
        yield f"**{escaped(block.title)}**"
        yield ""
    if isinstance(block, Table):
        yield from table_lines(block.columns, block.rows)
    elif isinstance(block, Pairs):
        yield from table_lines(("", "", ""), block.rows)
    elif isinstance(block, Lines):
        longest = max((len(ticks) for line in block.lines for ticks in re.findall("`+", line)), default=0)
        fence = "`" * max(3, longest + 1)
        yield from (fence, *block.lines, fence, "")
