"""How tests read a page: its elements and words, and the browser that draws it."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser

from meshwright.report.page.markup import VOID

LARGEST_BYTES = 1_000_000
FETCHING = ("src", "href", "srcset", "data", "action", "poster", "xlink:href")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=5000"),
)


class Elements(HTMLParser):
    """Every element with its attributes; fails on tags that do not close in turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def words(page: str) -> str:
    return " ".join(" ".join(Elements(page).text).split())


def check_alone(page: str) -> None:
    """One small well-formed file, no scripts, nothing fetched, no coordinate that is no number."""
    assert len(page.encode()) < LARGEST_BYTES
    elements = Elements(page).found
    assert not {tag for tag, _ in elements} & {"script", "link", "iframe", "img", "object", "embed", "image", "use", "b_"}
    assert not [key for _, attributes in elements for key in attributes if key in FETCHING or key.startswith("on")]
    assert "url(" not in page and "@import" not in page
    assert "nan" not in re.findall(r"[a-z]+", " ".join(v or "" for _, attributes in elements for v in attributes.values()))
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
