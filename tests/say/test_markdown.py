"""Documents as Markdown: every text is shown as it is, and none becomes markup."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from meshwright.say.document import Block, Document, Finding, Lines, Pairs, Table, Text
from meshwright.say.markdown import escaped, markdown

SCRIPT = "<script>alert(1)</script>"


UNESCAPED_BAR = re.compile(r"(?<!\\)(?:\\\\)*\|")


def test_markdown_shows_every_text_and_no_drawing(example: Callable[..., Document], texts: Callable[[Document], Iterator[str]]) -> None:
    shown = markdown(example())
    assert shown.startswith("## title word\n")
    lines = [line for block in example().blocks if isinstance(block, Lines) for line in block.lines]
    assert all((text if text in lines else escaped(text)) in shown for text in texts(example()))
    assert "Note: a note, word." in shown and "| --- | ---: |" in shown and "svg" not in shown
    assert "```\ntp=4,pp=8,vp=2,dp=16,mbs=1,zero=1,recompute=none\n  indented\n```" in shown


def test_markdown_has_no_markup_of_a_name(example: Callable[..., Document]) -> None:
    shown = markdown(example(SCRIPT))
    assert "\\<script\\>" in shown and not re.search(r"(?<!\\)<", shown)
    assert escaped("a|b *c* [d](e) &lt; `f`") == r"a\|b \*c\* \[d\](e) &amp;lt; \`f\`"


@given(st.lists(st.text(max_size=12), min_size=1, max_size=3))
def test_a_row_of_a_markdown_table_is_one_line_with_as_many_cells(cells: list[str]) -> None:
    block = Table("", tuple("abc"[: len(cells)]), (tuple(cells),))
    lines = markdown(Document(kind="example", title="", blocks=(block,))).splitlines()
    assert [len(UNESCAPED_BAR.findall(line)) for line in lines if line.startswith("|")] == [len(cells) + 1] * 3


COMMON = MarkdownIt("commonmark").enable("table")
# Line breaks, control characters and the spaces at the ends apart: those no renderer keeps.
PRINTED = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp", "Zs")) | st.just(" "), min_size=1, max_size=30).map(
    lambda text: f"x{text}x"
)


def rendered(*blocks: Block) -> str:
    return COMMON.render(markdown(Document(kind="example", title="T", blocks=blocks))).removeprefix("<h2>T</h2>\n")


@given(PRINTED)
def test_a_reader_of_markdown_sees_the_text_of_a_sentence_and_of_a_cell(text: str) -> None:
    assert html.unescape(rendered(Text(text))) == f"<p>{text}</p>\n"
    assert f"<td>{text}</td>" in html.unescape(rendered(Table("", ("a",), ((text,),))))


@pytest.mark.parametrize("text", ["- a", "+ a", "1. a", "2026) was", "---", "===", "    far", "> quoted", "# heading", "* item"])
def test_a_sentence_that_begins_like_markup_is_a_sentence(text: str) -> None:
    assert html.unescape(rendered(Text(text))) == f"<p>{text.lstrip()}</p>\n"
    finding = html.unescape(rendered(Finding("impossible", "", "dear", (text,))))
    assert f"<ul>\n<li>{text.lstrip()}</li>\n</ul>" in finding


@pytest.mark.parametrize("text", ["3.5 GiB", "-5 %", "+2", "1.", "-", "=1"])
def test_a_number_at_the_beginning_is_not_cluttered(text: str) -> None:
    assert html.unescape(rendered(Text(text))) == f"<p>{text}</p>\n"
    assert "\\" not in markdown(Document(kind="example", title="T", blocks=(Text(f"{text}x"),)))


@pytest.mark.parametrize("line", ["```", "````", "~~~", "a ``` b"])
def test_lines_stay_lines_whatever_is_in_them(line: str) -> None:
    page = rendered(Lines("", ("first", line, "<b>last</b>")), Text("after"))
    assert page == f"<pre><code>first\n{line}\n&lt;b&gt;last&lt;/b&gt;\n</code></pre>\n<p>after</p>\n"


def test_a_judged_statement_says_what_it_is_about_and_its_arithmetic() -> None:
    findings = (Finding("impossible", "", "too <dear>"), Finding("impossible", "price", "24 times the list", ("$1 / 2 h", "24 x")))
    assert markdown(Document(kind="claims", title="one claim", blocks=findings)).endswith(
        "**Impossible**: too \\<dear\\>\n\n**Impossible** price: 24 times the list\n\n- $1 / 2 h\n- 24 x\n\n"
    )


def test_pairs_are_a_table_and_a_title_is_said_once() -> None:
    pairs = Pairs("T", (("name", "value", "a remark"),))
    assert markdown(Document(kind="example", title="T", blocks=(pairs,))) == (
        "## T\n\n|  |  |  |\n| --- | --- | --- |\n| name | value | a remark |\n\n"
    )
