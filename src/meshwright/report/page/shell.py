"""What all pages share: the document with its style inside, sections and tiles."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from meshwright.files import write_whole
from meshwright.report.page.colours import variables
from meshwright.report.page.markup import Child, Html, joined, tag

STYLE = Path(__file__).parent / "style.css"


def document(title: str, header: Html, sections: Iterable[Html], footer: Html) -> str:
    """A self-contained page: style and drawings inside, no script and nothing fetched."""
    body = joined(header, tag("main", *sections), footer)
    return "<!doctype html>\n" + tag("html", _head(title), tag("body", body), lang="en") + "\n"


def _head(title: str) -> Html:
    dark = "@media screen and (prefers-color-scheme:dark){:root{color-scheme:dark;" + variables(dark=True) + "}}"
    style = ":root{color-scheme:light;" + variables(dark=False) + "}\n" + dark + "\n" + STYLE.read_text(encoding="utf-8")
    return tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(style)),
    )


def write_page(path: Path, page: str) -> None:
    """Write a page to its file."""
    write_whole(path, page.encode(errors="replace"))  # a name from a user's file may contain half a character (a lone surrogate)


def section(name: str, title: str, *children: Child) -> Html:
    """A part of a page under a heading."""
    return tag("section", tag("h2", title, id=name), *children, aria_labelledby=name)


def tile(label: str, value: str, remark: str) -> Html:
    """One number that matters, with its name and a remark."""
    return tag("div", tag("p", label, class_="label"), tag("p", value, class_="value"), tag("p", remark, class_="remark"), class_="tile")


def note_list(notes: Iterable[str]) -> Html:
    """A list of important notes; nothing if there are none."""
    items = [tag("li", note) for note in notes]
    return tag("ul", *items, class_="notes") if items else Html("")
