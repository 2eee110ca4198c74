"""A document as an HTML fragment, for notebooks and pages: escaped, without scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from meshwright.say.document import Block, Document, Finding, Lines, Note, Pairs, Picture, Table, Text


def fragment(document: Document) -> str:
    """The document as one `div`."""
    inside = "".join(_block(block, document.title) for block in document.blocks)
    return f'<div class="meshwright"><h3>{escape(document.title)}</h3>{inside}</div>'


def _block(block: Block, heading: str) -> str:
    if isinstance(block, Picture):
        return block.markup
    if isinstance(block, Text | Note):
        return _paragraph(block)
    if isinstance(block, Finding):
        about = f" {escape(block.about)}" if block.about else ""
        lines = "".join(f"<li>{escape(line)}</li>" for line in block.arithmetic)
        return f"<p><b>{escape(block.verdict)}</b>{about}: {escape(block.why)}</p>" + (f"<ul>{lines}</ul>" if lines else "")
    return _caption("" if block.title == heading else block.title) + _body(block)


def _body(block: Table | Pairs | Lines) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Pairs):
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(value)}</td><td>{escape(remark)}</td></tr>" for name, value, remark in block.rows
        )
        return f"<table>{rows}</table>"
    return f"<pre>{escape(chr(10).join(block.lines))}</pre>"


def _paragraph(block: Text | Note) -> str:
    prefix = "<b>Note:</b> " if isinstance(block, Note) else ""
    return f"<p>{prefix}{escape(block.text)}</p>"


def _caption(title: str) -> str:
    return f"<p><b>{escape(title)}</b></p>" if title else ""


def _table(block: Table) -> str:
    right = [column.endswith(">") for column in block.columns]
    head = _cells("th", (column.removesuffix(">") for column in block.columns), right)
    rows = "".join(f"<tr>{_cells('td', row, right)}</tr>" for row in block.rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(tag: str, cells: Iterable[str], right: Iterable[bool]) -> str:
    aligned = zip(cells, right, strict=True)
    return "".join(f'<{tag} style="text-align:{"right" if is_right else "left"}">{escape(cell)}</{tag}>' for cell, is_right in aligned)
