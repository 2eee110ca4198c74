"""Documents: every renderer shows what a document says and nothing else, whatever is written in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.show import show
from meshwright.say.document import VERSION, Document, Lines, Note, Pairs, Picture, Table, Text, plain
from meshwright.say.html import fragment
from meshwright.say.markdown import escaped, markdown

SCRIPT = "<script>alert(1)</script>"
TAGS = {"div", "h3", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "pre"}
UNESCAPED_BAR = re.compile(r"(?<!\\)(?:\\\\)*\|")
# Line breaks and control characters apart: those no renderer keeps.
WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20)


def document(word: str = "word") -> Document:
    """A document with every kind of block, and a word in each place where a name may stand."""
    return Document(
        kind="example",
        title=f"title {word}",
        blocks=(
            Table(f"table {word}", ("name", f"size {word}>"), (("one", f"1 {word}"), (f"two {word}", "2"))),
            Pairs(f"pairs {word}", (("key", f"value {word}", f"remark {word}"), ("other", "value", ""))),
            Text(f"a sentence, {word}."),
            Lines(f"lines {word}", ("tp=4,pp=8,vp=2,dp=16,mbs=1,zero=1,recompute=none", "  indented")),
            Note(f"a note, {word}."),
            Picture("<svg><title>a drawing</title></svg>"),
        ),
        values={"word": word, "count": 2, "unknown": float("nan")},
    )


def texts(blocks: Document) -> Iterator[str]:
    """Everything that a document says, apart from its drawings."""
    for block in blocks.blocks:
        if isinstance(block, Text | Note):
            yield block.text
        elif isinstance(block, Lines):
            yield from (block.title, *block.lines)
        elif isinstance(block, Table | Pairs):
            columns = [column.removesuffix(">") for column in block.columns] if isinstance(block, Table) else []
            yield from (block.title, *columns, *(cell for row in block.rows for cell in row))


def test_the_terminal_shows_every_text(capsys: pytest.CaptureFixture[str]) -> None:
    show(document(), as_json=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in texts(document()))
    assert "note: a note, word." in printed and "svg" not in printed


@pytest.mark.parametrize("word", [SCRIPT, "[bold]x[/bold]", "[link=x]", ":smile:", "\\[", "100 %"])
def test_the_terminal_takes_no_word_for_markup(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(document(word), as_json=False)
    printed = capsys.readouterr().out
    assert all(text in printed for text in texts(document(word)))
    assert "\x1b" not in printed


def test_lines_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    long = "x" * 1000
    show(Document(kind="example", title="", blocks=(Lines("whole", (long,)),)), as_json=False)
    assert long in capsys.readouterr().out.splitlines()


def test_markdown_shows_every_text_and_no_drawing() -> None:
    shown = markdown(document())
    assert shown.startswith("## title word\n")
    lines = [line for block in document().blocks if isinstance(block, Lines) for line in block.lines]
    assert all((text if text in lines else escaped(text)) in shown for text in texts(document()))
    assert "Note: a note, word." in shown and "| --- | ---: |" in shown and "svg" not in shown
    assert "```\ntp=4,pp=8,vp=2,dp=16,mbs=1,zero=1,recompute=none\n  indented\n```" in shown


def test_markdown_has_no_markup_of_a_name() -> None:
    shown = markdown(document(SCRIPT))
    assert "\\<script\\>" in shown and not re.search(r"(?<!\\)<", shown)
    assert escaped("a|b *c* [d](e) &lt; `f`") == r"a\|b \*c\* \[d\](e) &amp;lt; \`f\`"


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_a_row_of_a_markdown_table_is_one_line_with_as_many_cells(cells: list[str]) -> None:
    block = Table("", tuple("abc"[: len(cells)]), (tuple(cells),))
    lines = markdown(Document(kind="example", title="", blocks=(block,))).splitlines()
    assert [len(UNESCAPED_BAR.findall(line)) for line in lines if line.startswith("|")] == [len(cells) + 1] * 3


class Read(HTMLParser):
    """Tags and texts of a page, and whether every tag that opens is closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def without_picture(given: Document) -> Document:
    return Document(kind=given.kind, title=given.title, blocks=tuple(b for b in given.blocks if not isinstance(b, Picture)))


@given(WORDS)
def test_a_page_has_the_text_and_no_tags_of_it(word: str) -> None:
    read = Read(fragment(without_picture(document(word))))
    assert read.tags <= TAGS and read.attributes <= {"class", "style"} and read.open == []
    shown = "".join(read.texts)
    assert all(line in shown for text in texts(document(word)) for line in text.split("\n"))


def test_a_page_escapes_a_script_and_keeps_a_drawing() -> None:
    page = fragment(document(SCRIPT))
    num_scripts = 1 + sum(SCRIPT in text for text in texts(document(SCRIPT)))  # the title's and the blocks'
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == num_scripts
    assert "<svg><title>a drawing</title></svg>" in page
    assert '<td style="text-align:right">2</td>' in page and '<td style="text-align:left">one</td>' in page


@dataclass(frozen=True)
class Size:
    name: str
    num_bytes: float
    of: tuple[int, ...] = ()


JSON_TYPES = (str, int, float, bool, type(None), list, dict)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.floats().map(np.float64),
    st.floats(width=32).map(np.float32),
    st.integers(0, 9).map(np.int64),
    st.booleans().map(np.bool_),
    st.lists(st.floats(), max_size=3).map(np.array),
    st.builds(Size, st.text(max_size=3), st.floats()),
    st.just(Path("a/b")),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def assert_plain(value: Any) -> None:
    assert type(value) in JSON_TYPES
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        assert_plain(inner)


@given(VALUES)
def test_any_value_becomes_one_of_jsons_own_types(value: Any) -> None:
    made = plain(value)
    assert_plain(made)
    assert json.loads(json.dumps(made, allow_nan=False)) == made == plain(made)


def test_values_keep_their_names_and_numbers() -> None:
    assert plain(Size("a", np.float64(1.5), (1, 2))) == {"name": "a", "num_bytes": 1.5, "of": [1, 2]}
    assert plain({"a": float("inf"), "b": np.array([1.0, np.nan]), 3: {4}}) == {"a": None, "b": [1.0, None], "3": [4]}
    assert plain([True, np.bool_(False), 1, "1", None]) == [True, False, 1, "1", None]


def test_a_document_as_json_names_its_schema(capsys: pytest.CaptureFixture[str]) -> None:
    show(document(SCRIPT), as_json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"schema": f"meshwright/example/{VERSION}", "word": SCRIPT, "count": 2, "unknown": None}
    assert printed == document(SCRIPT).to_json()
