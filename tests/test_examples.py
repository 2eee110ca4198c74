"""The examples work: scripts and the notebook print what is stored beside them. `python tests/test_examples.py` stores it anew."""

import ast
import io
import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def printed(script: Path) -> str:
    """What a script prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(script.read_text(encoding="utf-8"), script.name, "exec"), {"__name__": "__main__"})
    return out.getvalue()


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs that its code cells give, run from the top."""
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell = {**cell, "execution_count": number, "outputs": outputs_of("".join(cell["source"]), names, number)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs_of(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """What one cell prints, and the value of its last line, in the form of a notebook file."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with redirect_stdout(out):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names) if isinstance(last, ast.Expr) else None
    outputs: list[dict[str, Any]] = []
    if out.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines_of(out.getvalue())})
    if value is not None:
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data_of(value)})
    return outputs


def data_of(value: Any) -> dict[str, list[str]]:
    """A value as text, and as HTML where it has one."""
    if not hasattr(value, "_repr_html_"):
        return {"text/plain": lines_of(repr(value))}
    return {"text/html": lines_of(value._repr_html_()), "text/plain": lines_of(str(value))}


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def texts_of(notebook: dict[str, Any]) -> list[list[str]]:
    """The text that each code cell shows, without its HTML."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [["".join(output.get("text") or output["data"]["text/plain"]) for output in cell["outputs"]] for cell in cells]


def pages_of(notebook: dict[str, Any]) -> list[bool]:
    """Of each output of each code cell, whether it has HTML."""
    outputs = [output for cell in notebook["cells"] if cell["cell_type"] == "code" for output in cell["outputs"]]
    return ["text/html" in output.get("data", {}) for output in outputs]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_prints_what_is_stored_beside_it(script, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert printed(script) == script.with_suffix(".txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_shows_what_its_cells_give(path, monkeypatch, tmp_path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    now = executed(stored)
    assert texts_of(now) == texts_of(stored)
    assert pages_of(now) == pages_of(stored)
    assert any(pages_of(stored))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_of_the_published_format(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert (stored["nbformat"], stored["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in stored["cells"]}) == len(stored["cells"])
    assert {cell["cell_type"] for cell in stored["cells"]} == {"code", "markdown"}


def test_there_are_examples():
    assert SCRIPTS
    assert NOTEBOOKS


def store() -> None:
    """Run everything and store what it gives."""
    start = Path.cwd()
    for path in (*SCRIPTS, *NOTEBOOKS):
        with TemporaryDirectory() as folder:
            os.chdir(folder)
            if path in SCRIPTS:
                path.with_suffix(".txt").write_text(printed(path), encoding="utf-8")
            else:
                renewed = executed(json.loads(path.read_text(encoding="utf-8")))
                path.write_text(json.dumps(renewed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            os.chdir(start)


if __name__ == "__main__":
    sys.exit(store())
