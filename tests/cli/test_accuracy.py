"""`meshwright accuracy` writes the page and its plot; the refits of its last table are stood in for."""

from __future__ import annotations

import json

import pytest

from meshwright.cli.main import main
from meshwright.evidence import accuracy
from meshwright.say.vocabulary import problems


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    tried = [accuracy.Assumption("STEP_S", 0.004, "host work", 1.0, 2.0)]
    monkeypatch.setattr(accuracy, "sensitivity", lambda **_: tried)


def test_the_page(capsys, tmp_path):
    page = tmp_path / "docs" / "accuracy.md"
    page.parent.mkdir()
    assert main(["accuracy", "--out", str(page)]) == 0
    text = page.read_text()
    for section in (
        "Targets and results",
        "A machine without measurements",
        "Intervals",
        "Comparison with other planners",
        "Assumptions",
        "Weak points",
    ):
        assert f"## {section}\n" in text
    plot = page.parent / "accuracy" / "predicted-against-measured.svg"
    assert plot.is_file() and "(accuracy/predicted-against-measured.svg)" in text
    assert "| `STEP_S` | 0.004 |" in text and "nan" not in text
    out = capsys.readouterr().out
    assert out.startswith("asked and reached\n") and "written: " in out


def test_json(capsys, tmp_path):
    assert main(["accuracy", "--out", str(tmp_path / "page.md"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data) == []
    assert [one["path"] for one in data["files"]] == [str(tmp_path / "page.md"), str(tmp_path / "page" / "predicted-against-measured.svg")]
    assert {figure["name"] for figure in data["figures"]} >= {"Fitted constants"}
