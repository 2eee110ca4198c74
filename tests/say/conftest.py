"""How tests of documents find what one says: a table by its title, pairs by their names, sentences and notes."""

from __future__ import annotations

from meshwright.say.document import Document, Note, Pairs, Table, Text


def table(document: Document, title: str) -> Table:
    """The table with this title."""
    (found,) = (block for block in document.blocks if isinstance(block, Table) and block.title == title)
    return found


def pairs(document: Document) -> dict[str, str]:
    """All pairs of a document, by name."""
    return {name: value for block in document.blocks if isinstance(block, Pairs) for name, value, _ in block.rows}


def sentences(document: Document) -> list[str]:
    """The sentences, notes left out."""
    return [block.text for block in document.blocks if isinstance(block, Text)]


def notes(document: Document) -> list[str]:
    """The notes."""
    return [block.text for block in document.blocks if isinstance(block, Note)]
