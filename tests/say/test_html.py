"""Documents as HTML: every text is shown, and none becomes a tag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.say.document import Document, Finding, Lines, Pairs, Picture, Table
from meshwright.say.html import fragment

SCRIPT = "<script>alert(1)</script>"


TAGS = {"div", "h3", "p", "b", "table", "thead", "tbody", "tr", "th", "td", "pre"}


# Line breaks and control characters apart: those no renderer keeps.
WORDS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), max_size=20)


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


@given(word=WORDS)
def test_a_page_has_the_text_and_no_tags_of_it(
    word: str, example: Callable[..., Document], texts: Callable[[Document], Iterator[str]]
) -> None:
    read = Read(fragment(without_picture(example(word))))
    assert read.tags <= TAGS and read.attributes <= {"class", "style"} and read.open == []
    shown = "".join(read.texts)
    assert all(line in shown for text in texts(example(word)) for line in text.split("\n"))


def test_a_page_escapes_a_script_and_keeps_a_drawing(example: Callable[..., Document], texts: Callable[[Document], Iterator[str]]) -> None:
    page = fragment(example(SCRIPT))
    num_scripts = 1 + sum(SCRIPT in text for text in texts(example(SCRIPT)))  # the title's and the blocks'
    assert "<script" not in page and page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == num_scripts
    assert "<svg><title>a drawing</title></svg>" in page
    assert '<td style="text-align:right">2</td>' in page and '<td style="text-align:left">one</td>' in page


def test_a_judged_statement_says_what_it_is_about_and_its_arithmetic() -> None:
    findings = (Finding("impossible", "", "too <dear>"), Finding("impossible", "price", "24 times the list", ("$1 / 2 h", "24 x")))
    page = fragment(Document(kind="claims", title="one claim", blocks=findings))
    assert "<p><b>impossible</b>: too &lt;dear&gt;</p>" in page
    assert "<p><b>impossible</b> price: 24 times the list</p><ul><li>$1 / 2 h</li><li>24 x</li></ul>" in page


@given(word=WORDS)
def test_no_part_of_a_judged_statement_becomes_a_tag(word: str) -> None:
    read = Read(fragment(Document(kind="claims", title="", blocks=(Finding(word, word, word, (word,)),))))
    assert read.tags <= {*TAGS, "ul", "li"} and read.open == []
    assert "".join(read.texts) == f"{word}{f' {word}' if word else ''}: {word}{word}"


def test_a_block_with_the_title_of_its_document_says_it_once() -> None:
    twice = Document(kind="example", title="a < b", blocks=(Pairs("a < b", (("x", "1", ""),)), Lines("", ("y",))))
    page = fragment(twice)
    assert page == (
        '<div class="meshwright"><h3>a &lt; b</h3><table><tr><th>x</th><td>1</td><td></td></tr></table><pre>y</pre></div>'
    )  # no caption for the first, none for an empty title


def test_a_document_of_nothing_is_its_title() -> None:
    assert fragment(Document(kind="example", title='"')) == '<div class="meshwright"><h3>&quot;</h3></div>'


def test_a_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError):
        fragment(Document(kind="example", title="", blocks=(Table("", ("a", "b"), (("1",),)),)))
