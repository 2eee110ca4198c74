"""Imports point one way, and the base install is enough to import everything outside `train`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "meshwright"

# From the outside in: a part may import what stands below it, and never its neighbours on the same line. The modules of `predict` have
# places of their own, because a job stands among them: it knows what a layout must divide, and what prices a layout takes a job.
ARROW = (
    ("cli",),
    ("engines",),  # a job leaves out the doctor's bad nodes
    ("serve", "doctor", "lab"),  # the live page shows what reports show; the doctor times nodes as the trainer would; a lab runs it
    ("report", "audit", "train"),
    ("say",),
    ("simulator",),
    ("evidence", "ledger"),
    ("plan",),
    ("predict.rehearsed",),
    ("predict.forecast", "predict.serving"),
    ("predict.outcome", "predict.exact"),
    ("predict.prediction",),
    ("predict.step", "predict.uncertainty"),
    ("predict.measured_prices",),
    ("predict.prices",),
    ("predict.inputs",),
    ("job",),
    ("predict.profile_choice", "predict.recompute", "predict.slice_memory"),
    ("predict.measured", "predict.placement", "predict.footprint", "predict.traffic", "predict.legality", "predict.mechanisms"),
    ("predict.parameters", "predict.layer_work", "predict.shared_cores"),
    ("predict.stages", "predict.software", "predict.goodput"),
    ("predict.practice",),
    ("layout",),
    ("cost",),
    ("describe",),
    ("record",),
    ("storage",),
    ("files", "frames"),
    ("units", "arguments", "frozen"),
    ("errors",),
)
LEVEL = {part: level for level, parts in enumerate(ARROW) for part in parts}
APART = {("report", "simulator"), ("audit", "simulator"), ("train", "simulator"), ("train", "say")}  # what passes between them is a file
# Rooms of the trainer, from the outside in, as above.
ROOMS = (
    ("generations",),
    ("session",),
    ("loop", "checks", "measure", "rehearse", "paced"),
    ("replay", "feed"),
    ("elastic",),
    ("record", "saves", "meeting", "agreement"),
    ("launch",),
    ("health", "interop"),
    ("replica", "job"),
    ("sums",),
    ("parallel",),
    ("model",),
    ("kernels",),
    ("material",),
    ("tuning",),
    ("data", "checkpoint", "benchmark", "folders", "shared_gpu", "incidents", "membership"),
    ("sealed",),
)
# Values that a notebook user calls methods on: each of these forwards to the function above it, inside the method.
FORWARDS = {
    ("job", "predict.forecast"),
    ("job", "plan"),
    ("job", "say"),
    ("predict.forecast", "say"),
    ("plan", "say"),
    ("simulator", "say"),
    ("record", "say"),
    ("record", "report"),
}
NARROWER = {"layout": {"arguments", "errors"}, "cost": {"units", "errors"}}  # pure arithmetic knows no files, shapes or layouts
ROOT = ("__init__", "__main__", "predict.__init__")  # the public names, and the door to the command line: they may see everything
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
            names = (
                [f"{base}.{alias.name}" for alias in node.names]
                if base in ("meshwright", "meshwright.predict", "meshwright.train")
                else [base]
            )
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
        if top == "meshwright" and rest and part not in ROOT:
            other = part_named(rest)
            forwards = not at_import and (part, other) in FORWARDS
            if not forwards and not may_import(part, other):
                found.append(f"line {line}: {part} may not import {other}")
        if at_import and top not in BASE_INSTALL and part != "train":
            found.append(f"line {line}: {top} is not in the base install; import it inside the function that needs it")
        if top in TRAIN_ONLY and part not in ("train", "cli"):
            found.append(f"line {line}: only train may import {top}")
    return found


def room_breaches(source: str, room: str) -> list[str]:
    """What breaks the arrow between the rooms of the trainer, one sentence each."""
    level = {name: number for number, names in enumerate(ROOMS) for name in names}
    found = []
    for module, line, _ in imports(ast.parse(source)):
        names = module.split(".")
        if names[:2] == ["meshwright", "train"] and len(names) > 2 and names[2] != room and level[names[2]] <= level[room]:
            found.append(f"line {line}: train.{room} may not import train.{names[2]}")
    return found


def part_named(rest: str) -> str:
    """The part that a dotted name below the package belongs to: its first word, and within `predict` the first two."""
    names = rest.split(".")
    return ".".join(names[: 2 if names[0] == "predict" else 1])


def may_import(part: str, other: str) -> bool:
    """Whether the arrow lets `part` import `other`; a name that is no part is one of the package's own values."""
    if part == other or other not in LEVEL:
        return True
    if (part, other) in APART:
        return False
    return other in NARROWER[part] if part in NARROWER else LEVEL[other] > LEVEL[part]


def part_of(path: Path) -> str:
    """The part of the house a file belongs to: its folder under the package, or its own name; within `predict` its module."""
    return part_named(".".join(path.relative_to(PACKAGE).with_suffix("").parts))


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_downward_and_need_only_the_base_install(path: Path) -> None:
    assert breaches(path.read_text(encoding="utf-8"), part_of(path)) == []


@pytest.mark.parametrize(
    "path", [path for path in FILES if part_of(path) == "train" and path != PACKAGE / "train" / "__init__.py"], ids=lambda path: path.name
)
def test_rooms_of_the_trainer_point_downward_too(path: Path) -> None:
    room = path.relative_to(PACKAGE / "train").parts[0].removesuffix(".py")
    assert room_breaches(path.read_text(encoding="utf-8"), room) == []


def test_a_breach_between_rooms_is_found() -> None:
    assert len(room_breaches("from meshwright.train.replica import Replica", "parallel")) == 1
    assert len(room_breaches("def lazily():\n    from meshwright.train.model.transformer import Block", "kernels")) == 1
    assert len(room_breaches("from meshwright.train import parallel", "model")) == 1
    assert room_breaches("from meshwright.train.kernels import fp8", "replica") == []
    assert room_breaches("from meshwright.train.health.watch import Watch", "health") == []


def test_every_part_has_its_place_in_the_arrow() -> None:
    assert {part_of(path) for path in FILES} - set(ROOT) <= set(LEVEL)


def test_every_room_of_the_trainer_has_its_place_in_the_arrow() -> None:
    rooms = {path.relative_to(PACKAGE / "train").parts[0].removesuffix(".py") for path in FILES if part_of(path) == "train"}
    assert rooms - {"__init__"} == {room for level in ROOMS for room in level}


@pytest.mark.parametrize(
    "part, source",
    [
        ("cost", "from meshwright.describe.model import Model"),
        ("cost", "from meshwright import layout"),
        ("layout", "import meshwright.units"),
        ("predict.step", "from meshwright.evidence import fit"),
        ("predict.step", "def lazily():\n    from meshwright.plan.search import search"),
        ("predict.footprint", "from meshwright.predict.prices import Pricer"),
        ("predict.footprint", "from meshwright.predict import traffic"),
        ("job", "from meshwright.plan.search import search"),
        ("job", "def lazily():\n    from meshwright.evidence import fit"),
        ("simulator", "from meshwright.report import compare"),
        ("describe", "from .. import plan"),
        ("evidence", "from scipy.optimize import least_squares"),
        ("evidence", "class Fit:\n    import matplotlib"),
        ("predict.step", "def lazily():\n    import torch"),
        ("cli", "import torch"),
    ],
)
def test_a_breach_is_found(part: str, source: str) -> None:
    assert len(breaches(source, part)) == 1


@pytest.mark.parametrize(
    "part, source",
    [
        ("predict.step", "import numpy as np\nfrom meshwright.predict.placement import place\nfrom meshwright.describe.model import Model"),
        ("job", "def lazily():\n    from meshwright.plan.search import search"),
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
