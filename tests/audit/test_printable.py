"""Text of other people's: on one line, without what a terminal obeys, and shown literally by Markdown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.audit.printable import escaped, one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("  two\n\tlines \r\n", "two lines"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("back\x08space", "back\\x08space"),
        ("flip\u202eped", "flip\\u202eped"),
        ("naïve Größe 訓練", "naïve Größe 訓練"),
        ("", ""),
    ],
)
def test_nothing_moves_the_cursor_or_hides_a_line(text: str, shown: str) -> None:
    assert one_line(text) == shown


@given(st.text())
def test_whatever_is_given_is_one_line_that_prints(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1 and not any(ord(character) < 32 or ord(character) == 127 for character in shown)
    assert one_line(shown) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("<script>", "\\<script\\>"),
        ("[link](x)", "\\[link\\](x)"),
        ("**bold** `code` _it_ # no", "\\*\\*bold\\*\\* \\`code\\` \\_it\\_ \\# no"),
        ("back\\slash", "back\\\\slash"),
        ("\x1b", "\\\\x1b"),
    ],
)
def test_markdown_shows_it_literally(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text(alphabet="ab\\`*_[]<>|#\n "))
def test_without_its_escapes_the_text_is_the_same(text: str) -> None:
    shown, plain, position = escaped(text), "", 0
    while position < len(shown):
        position += shown[position] == "\\"
        plain += shown[position]
        position += 1
    assert plain == " ".join(text.split())
