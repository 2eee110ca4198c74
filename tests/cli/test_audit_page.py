"""The page that an audit writes beside what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.cli.audit_page import with_page
from meshwright.errors import InputError
from meshwright.say.document import Document, Text
from meshwright.say.memo import PASS, Memo

DOCUMENT = Document(kind="claims", title="a claim", blocks=(Text("fine"),), values={"claims": []})
MEMO = Memo(kind="a claim", title="<b>fast</b>", outcome=PASS, verdict="consistent", headline="It can be.")


def test_without_a_path_nothing_is_written_or_said() -> None:
    assert with_page(DOCUMENT, None, [MEMO]) is DOCUMENT


def test_a_name_of_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="html"):
        with_page(DOCUMENT, tmp_path / "memo.pdf", [MEMO])
    assert not (tmp_path / "memo.pdf").exists()


def test_a_page_is_written_and_both_people_and_scripts_are_told(tmp_path: Path) -> None:
    path = tmp_path / "memo.html"
    found = with_page(DOCUMENT, path, [MEMO])
    assert found.values["files"] == [{"what": "page", "path": str(path)}]
    assert found.blocks[:-1] == DOCUMENT.blocks and str(path) in str(found.blocks[-1])
    page = path.read_text(encoding="utf-8")
    assert "It can be." in page and "<b>fast" not in page and "&lt;b&gt;fast" in page
