"""What all pages share: one file that stands alone, names escaped, halves of characters replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Elements, check_alone

from meshwright.errors import InputError
from meshwright.report.page.colours import PALETTE
from meshwright.report.page.markup import Html, tag
from meshwright.report.page.shell import document, note_list, section, tile, write_page


def page(title: str = "a <b> & c") -> str:
    return document(title, tag("header", title), [section("one", "First", "text"), section("two", "Second")], tag("footer", "end"))


def test_a_page_stands_alone_and_escapes_its_title() -> None:
    made = page()
    check_alone(made)
    assert made.startswith("<!doctype html>\n") and made.endswith("</html>\n")
    assert "<title>a &lt;b&gt; &amp; c</title>" in made and '<html lang="en">' in made and 'name="viewport"' in made


def test_every_colour_has_a_light_and_a_dark_form_in_the_style() -> None:
    style = page().split("<style>")[1].split("</style>")[0]
    light, dark = style.split("@media screen and (prefers-color-scheme:dark)")[:2]
    for name, (by_day, by_night) in PALETTE.items():
        assert f"--{name}:{by_day};" in light and f"--{name}:{by_night};" in dark


def test_a_section_is_named_by_its_heading() -> None:
    assert section("time", "Time & more", "x <y>", None) == (
        '<section aria-labelledby="time"><h2 id="time">Time &amp; more</h2>x &lt;y&gt;</section>'
    )
    found = Elements(page()).found
    assert [attributes["aria-labelledby"] for tag_, attributes in found if tag_ == "section"] == ["one", "two"]


def test_a_tile_is_a_name_a_number_and_a_remark() -> None:
    made = tile("Cost", "<1 $", "a & b")
    assert made == ('<div class="tile"><p class="label">Cost</p><p class="value">&lt;1 $</p><p class="remark">a &amp; b</p></div>')


def test_notes_are_a_list_and_none_is_nothing() -> None:
    assert note_list([]) == Html("") and note_list(iter(["a<b"])) == '<ul class="notes"><li>a&lt;b</li></ul>'


def test_half_a_character_is_replaced_and_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", page("half \ud800 of one"))
    assert "half ? of one" in (tmp_path / "page.html").read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"cannot write page\.html"):
        write_page(tmp_path / "none" / "page.html", page())
