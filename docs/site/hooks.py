"""What mkdocs does for this repository beyond its own features.

Pages that live at the root of the repository (README, ARCHITECTURE, ...) become pages of the site. Links to files that the site
does not hold, such as tests and source files, become the file's path in code style. The page of the Python API lists every name
in `meshwright.__all__`.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import meshwright

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {  # file of the repository -> page of the site
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/h200.md": "benchmarks-h200.md",
}
SOURCES = {page: source for source, page in ROOT_PAGES.items()}
PUBLIC_NAMES = "<!-- public names -->"  # of api.md: here the names of `meshwright.__all__` are put
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages to those of docs/."""
    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return a page's text with links that hold on the site, and with the public names where it asks for them."""
    page_uri = page.file.src_uri
    parts = FENCE.split(markdown)
    text = "".join(part if part.startswith("```") else LINK.sub(lambda link: _link(link, page_uri, files), part) for part in parts)
    return text.replace(PUBLIC_NAMES, _public_names())


def _link(link: re.Match[str], page_uri: str, files: Files) -> str:
    """The link as the site needs it: relative to the page, or the path as code where the site has no such file."""
    mark, words, address = link.groups()
    target, hash_mark, anchor = address.partition("#")
    if not target or "://" in target:
        return link[0]
    source = SOURCES.get(page_uri, f"docs/{page_uri}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    uri = ROOT_PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
    if uri and files.get_file_from_path(uri):
        return f"{mark}[{words}]({posixpath.relpath(uri, posixpath.dirname(page_uri) or '.')}{hash_mark}{anchor})"
    if not (ROOT / path).exists():
        return link[0]  # mkdocs reports it
    return f"`{path}`" if posixpath.basename(path) in words else f"{words} (`{path}`)"


def _public_names() -> str:
    """One mkdocstrings block for each public name, in the order of `__all__`."""
    return "\n\n".join(f"::: {_where(name)}" for name in getattr(meshwright, "__all__", ()))


def _where(name: str) -> str:
    """Where a public name is defined; a plain value has no such place, and stands where it is exported."""
    value = getattr(meshwright, name)
    is_defined = inspect.isclass(value) or inspect.isfunction(value)
    return f"{value.__module__}.{value.__qualname__}" if is_defined else f"meshwright.{name}"
