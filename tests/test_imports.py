"""Imports point one way, and the base install is enough to import everything outside `train`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "meshwright"

# From the outside in: a part may import what stands below it, and never its neighbours on the same line.
ARROW = (
    ("cli",),
    ("serve",),  # the live page shows what reports show
    ("report", "audit", "simulate", "train"),  # what passes between them is a file
    ("evidence", "ledger"),
    ("plan",),
    ("predict",),
    ("layout",),
    ("cost",),
    ("describe",),
    ("record",),
    ("units", "files"),
    ("errors",),
)
# Rooms of a part that have an arrow of their own: from the outside in, as above.
ROOMS = {
    "predict": (
        ("outcome", "serving"),
        ("exact",),
        ("prediction",),
        ("step", "uncertainty"),
        ("prices",),
        ("inputs",),
        ("placement", "footprint", "traffic"),
        ("stages", "software"),
    ),
}
LEVEL = {part: level for level, parts in enumerate(ARROW) for part in parts}
NARROWER = {"layout": {"errors"}, "cost": {"units", "errors"}}  # pure arithmetic knows no files, shapes or layouts
ROOT = ("__init__", "__main__")  # the public names, and the door to the command line: they may see everything
BASE_INSTALL = {"meshwright", "numpy", "pydantic", "typer", "rich", *sys.stdlib_module_names}
TRAIN_ONLY = {"torch"}

Import = tuple[str, int, bool]  # module, line, and whether it runs when the file is imported


def imports(tree: ast.AST, at_import: bool = True) -> Iterator[Import]:
    """Every import below `tree`; one inside a function does not run when the file is imported."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "meshwright" if node.level else node.module or ""
            packages = ("meshwright", *(f"meshwright.{part}" for part in ROOMS))
            names = [f"{base}.{alias.name}" for alias in node.names] if base in packages else [base]
            yield from ((name, node.lineno, at_import) for name in names)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, at_import=False)
        elif not _is_type_checking(node):
            yield from imports(node, at_import)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def breaches(source: str, part: str) -> list[str]:
    """What breaks the arrow or the base install in a file that belongs to `part`, one sentence each."""
    found = []
    for module, line, at_import in imports(ast.parse(source)):
        top, _, rest = module.partition(".")
        if top == "meshwright" and rest and part not in ROOT and not may_import(part, rest.split(".")[0]):
            found.append(f"line {line}: {part} may not import {rest.split('.')[0]}")
        if at_import and top not in BASE_INSTALL and part != "train":
            found.append(f"line {line}: {top} is not in the base install; import it inside the function that needs it")
        if top in TRAIN_ONLY and part not in ("train", "cli"):
            found.append(f"line {line}: only train may import {top}")
    return found


def room_breaches(source: str, part: str, room: str) -> list[str]:
    """What breaks the arrow between the rooms of one part, one sentence each."""
    level = {name: number for number, names in enumerate(ROOMS[part]) for name in names}
    found = []
    for module, line, _ in imports(ast.parse(source)):
        names = module.split(".")
        if names[:2] == ["meshwright", part] and len(names) > 2 and room in level and names[2] != room:
            other = names[2]
            if level.get(other, -1) <= level[room]:
                found.append(f"line {line}: {part}.{room} may not import {part}.{other}")
    return found


def may_import(part: str, other: str) -> bool:
    """Whether the arrow lets `part` import `other`; a name that is no part is one of the package's own values."""
    if part == other or other not in LEVEL:
        return True
    return other in NARROWER[part] if part in NARROWER else LEVEL[other] > LEVEL[part]


def part_of(path: Path) -> str:
    """The part of the house a file belongs to: its folder under the package, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_downward_and_need_only_the_base_install(path: Path) -> None:
    assert breaches(path.read_text(encoding="utf-8"), part_of(path)) == []


@pytest.mark.parametrize("path", [path for path in FILES if part_of(path) in ROOMS], ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_rooms_of_a_part_point_downward_too(path: Path) -> None:
    part, room = path.relative_to(PACKAGE).parts[:2]
    assert room_breaches(path.read_text(encoding="utf-8"), part, room.removesuffix(".py")) == []


def test_every_part_has_its_place_in_the_arrow() -> None:
    assert {part_of(path) for path in FILES} - set(ROOT) <= set(LEVEL)


@pytest.mark.parametrize(
    "part, source",
    [
        ("cost", "from meshwright.describe.model import Model"),
        ("cost", "from meshwright import layout"),
        ("layout", "import meshwright.units"),
        ("predict", "from meshwright.evidence import fit"),
        ("predict", "def lazily():\n    from meshwright.plan.search import search"),
        ("simulate", "from meshwright.report import compare"),
        ("describe", "from .. import predict"),
        ("evidence", "from scipy.optimize import least_squares"),
        ("evidence", "class Fit:\n    import matplotlib"),
        ("predict", "def lazily():\n    import torch"),
        ("cli", "import torch"),
    ],
)
def test_a_breach_is_found(part: str, source: str) -> None:
    assert len(breaches(source, part)) == 1


@pytest.mark.parametrize(
    "part, source",
    [
        ("predict", "import numpy as np\nfrom meshwright.predict.placement import place\nfrom meshwright.describe.model import Model"),
        ("evidence", "def fit():\n    from scipy.optimize import least_squares"),
        ("evidence", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
        ("train", "import torch"),
        ("cli", "def train():\n    import torch\n    from meshwright.train.loop import run"),
        ("__main__", "from meshwright.cli.main import main"),
        ("cli", "from meshwright import __version__"),
    ],
)
def test_what_the_arrow_allows_passes(part: str, source: str) -> None:
    assert breaches(source, part) == []


def test_a_breach_between_rooms_is_found() -> None:
    assert len(room_breaches("from meshwright.predict.prices import Pricer", "predict", "footprint")) == 1
    assert len(room_breaches("from meshwright.predict import traffic", "predict", "footprint")) == 1
    assert room_breaches("from meshwright.predict import software", "predict", "footprint") == []
