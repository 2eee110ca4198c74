"""HTML and SVG as values: a child that is not `Html` is text, and is escaped when it is put into an element."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence

VOID = frozenset({"br", "meta", "link", "img", "hr"})
NO_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")  # with one of these a drawing is not valid XML, and no program opens it


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | float | None  # None: no child


def tag(name: str, *children: Child | Iterable[Child], **attributes: str | float | None) -> Html:
    """An element. Children that are not `Html` are escaped; an attribute of None is left out; `class_` is class, `_` in a name is `-`."""
    inside = "".join(_child(child) for child in children)
    written = "".join(f' {_name(key)}="{escape(number(value))}"' for key, value in attributes.items() if value is not None)
    if not inside and name in VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{inside}</{name}>")


def joined(*parts: Child | Iterable[Child]) -> Html:
    """The parts one after the other."""
    return Html("".join(_child(part) for part in parts))


def number(value: str | float) -> str:
    """A coordinate to a hundredth of a pixel; text is not changed."""
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        raise ValueError(f"{value} is no coordinate")
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _child(child: Child | Iterable[Child]) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return str(child)
    if isinstance(child, str):
        return escape(child)
    if isinstance(child, int | float):
        return escape(number(child))
    return "".join(_child(item) for item in child)


def escape(text: str) -> str:
    """Text escaped for markup; characters that XML does not allow become the replacement character."""
    return html.escape(NO_XML.sub("\ufffd", text))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def svg(width: float, height: float, label: str, *children: Child | Iterable[Child], class_: str = "chart") -> Html:
    """A drawing that scales with its box; `label` describes it in words."""
    box = f"0 0 {number(float(width))} {number(float(height))}"
    return tag("svg", *children, viewBox=box, role="img", aria_label=label, class_=class_)


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]], label: str, *, caption: str = "", class_: str | None = None) -> Html:
    """A table in a box of its own, in which it scrolls if the page is narrow. A column whose name ends in > is right-aligned."""
    sides = ["num" if name.endswith(">") else None for name in columns]
    head = tag("tr", (tag("th", name.rstrip(">"), class_=side, scope="col") for name, side in zip(columns, sides, strict=True)))
    body = [tag("tr", (tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True))) for row in rows]
    inside = tag("table", tag("thead", head), tag("tbody", *body), class_=class_, aria_label=label)
    above = tag("p", caption, class_="caption") if caption else None  # in the table it would be as wide, and scroll with it
    return joined(above, tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=label))


def swatch(colour: str, label: str) -> Html:
    """A patch of colour with its label."""
    return tag("span", tag("i", style=f"background:{colour}"), label, class_="key")


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Swatches in a row: (colour, label)."""
    return tag("p", (swatch(colour, label) for colour, label in entries), class_="legend")
