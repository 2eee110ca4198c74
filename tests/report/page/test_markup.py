"""Markup escapes what is not markup, and writes numbers plainly."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from meshwright.report.page.markup import Html, joined, legend, number, svg, table, tag


def test_text_and_attributes_are_escaped_and_markup_is_not() -> None:
    assert tag("p", "a < b", tag("b", "c"), title='"x"') == '<p title="&quot;x&quot;">a &lt; b<b>c</b></p>'


def test_names_of_attributes_are_those_of_html() -> None:
    assert tag("i", class_="a", aria_label="b", stroke_width=1.5, x=None) == '<i class="a" aria-label="b" stroke-width="1.5"></i>'


def test_void_elements_do_not_close() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'


@pytest.mark.parametrize("value, text", [(1.0, "1"), (0.125, "0.12"), (10, "10"), (-0.5, "-0.5"), ("50%", "50%"), (100.0, "100")])
def test_numbers_are_short(value: float | str, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_cannot_be_drawn_is_refused(value: float) -> None:
    with pytest.raises(ValueError):
        number(value)


def test_parts_are_joined_and_nothing_is_nothing() -> None:
    assert joined("<", None, Html("<br>"), ["a", Html("b")], 2) == "&lt;<br>ab2"


def test_a_table_aligns_numbers_right_and_scrolls_in_its_own_box() -> None:
    drawn = table(("name", "time>"), [("a", "1 s")], "times", caption="in words")
    assert '<td class="num">1 s</td>' in drawn and '<th class="num" scope="col">time</th>' in drawn
    assert drawn.startswith('<p class="caption">in words</p><div class="scroll"')


def test_a_legend_pairs_colours_with_words() -> None:
    assert legend([("#fff", "<x>")]) == '<p class="legend"><span class="key"><i style="background:#fff"></i>&lt;x&gt;</span></p>'


@pytest.mark.parametrize("text", ["a\x00b", "\x1b[31m", "\ufffe", "\x0b"])
def test_characters_that_xml_cannot_hold_are_shown_as_unknown(text: str) -> None:
    drawn = svg(1, 1, text, tag("title", text))
    (title,) = ET.fromstring(drawn)
    assert title.text is not None and "\ufffd" in title.text and len(title.text) == len(text)


def test_what_xml_can_hold_stays() -> None:
    text = "tab\tline\nquote\"' & < > \u00e4 \U0001f600"
    assert ET.fromstring(tag("p", text)).text == text
    assert ET.fromstring(tag("p", x=text)).get("x") is not None


def test_a_drawing_says_its_size_and_what_it_shows() -> None:
    assert svg(10, 2.5, "a & b", class_="bar") == '<svg viewBox="0 0 10 2.5" role="img" aria-label="a &amp; b" class="bar"></svg>'


def test_a_row_that_does_not_fit_its_columns_is_refused() -> None:
    with pytest.raises(ValueError):
        table(("a", "b"), [("1",)], "wrong")


def test_a_table_of_nothing_has_its_head_and_cells_of_markup_stay() -> None:
    assert table(("a>",), [], "none").count("<tr>") == 1
    drawn = table(("a",), [(tag("b", "x"),), (None,), (3,)], "some")
    assert "<td><b>x</b></td>" in drawn and "<td></td>" in drawn and "<td>3</td>" in drawn
