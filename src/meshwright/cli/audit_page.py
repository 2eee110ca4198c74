"""The page of an audit: memos written to a file, and a line that says where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from meshwright.files import check_ending
from meshwright.report.page.memo_page import memo_page
from meshwright.report.page.shell import write_page
from meshwright.say.document import Document, Text
from meshwright.say.memo import Memo


def with_page(document: Document, path: Path | None, memos: Sequence[Memo]) -> Document:
    """The document; if a page is wanted, it is written, and the document names it."""
    if path is None:
        return document
    check_ending(path, "the page", ".html", ".htm")
    write_page(path, memo_page(memos))
    files = [{"what": "page", "path": str(path)}]
    return replace(document, blocks=(*document.blocks, Text(f"wrote the page: {path}")), values={**document.values, "files": files})
