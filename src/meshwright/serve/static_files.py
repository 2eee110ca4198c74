"""The page's own files, read once at the start: a request names one of these files, never a path on disk."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path

from meshwright.report.page import colours

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Content and type of every file of the page, by its URL path; `/` is the page."""
    found = {
        f"/static/{path.relative_to(FOLDER).as_posix()}": (path.read_bytes(), TYPES[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }
    found["/"] = found.pop("/static/index.html")
    found["/static/report.css"] = (_report_style(), TYPES[".css"])
    return found


def _report_style() -> bytes:
    """The colours and style of the reports, so that the live page looks like them."""
    style = resources.files("meshwright.report.page").joinpath("style.css").read_text(encoding="utf-8")
    light, dark = (f":root{{{colours.variables(is_dark)}}}" for is_dark in (False, True))
    return f"{light}\n@media (prefers-color-scheme: dark){{{dark}}}\n{style}".encode()
