"""`meshwright fit`: what it prints and writes; the fit itself is stood in for, as it takes a while."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.evidence import refit
from meshwright.predict.software import FITTED
from meshwright.say.vocabulary import problems


@pytest.fixture
def quick(monkeypatch):
    """A fit that comes to the carried result at once."""
    files = [json.loads((refit.HERE / name).read_text()) for name in ("constants.json", "residuals.json")]
    monkeypatch.setattr(refit, "refit", lambda *_: refit.Refit(*files))


def test_constants_count_and_figures(capsys, quick, tmp_path):
    assert main(["fit", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{len(FITTED)} fitted constants\n")
    assert all(name in out for name in FITTED)
    assert "fitted on 48 pre-training rows" in out and "asked and reached" in out and "missed" not in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["constants.json", "residuals.json"]


def test_json(capsys, quick, tmp_path):
    assert main(["fit", "--out", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data) == []
    assert [Path(one["path"]).name for one in data["files"]] == ["constants.json", "residuals.json"]
    assert data["num_constants"] == len(FITTED) <= 24
    assert set(data["constants"]["round_s"]) == {"value", "unit", "meaning", "bounds", "expected"}
    assert {figure["name"] for figure in data["figures"]} >= {"GPT-3 and 405B, mean error"}


def test_without_scipy(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["fit"]) == 2
    assert (
        capsys.readouterr().err == "meshwright: this needs scipy and matplotlib\n  where: the extra `fit`\n"
        "  fix:   pip install '.[fit]' in the project's folder, or 'meshwright[fit]'\n"
    )


@pytest.mark.parametrize(
    "name, what", [("file", "this is not a folder"), ("new", "the folder does not exist"), ("a/b", "the folder does not exist")]
)
def test_a_folder_that_cannot_be(capsys, tmp_path, name, what):
    (tmp_path / "file").write_text("")
    assert main(["fit", "--out", str(tmp_path / name)]) == 2
    message = f"meshwright: {what}\n  where: --out {tmp_path / name}\n  fix:   make the folder first, or name another\n"
    assert capsys.readouterr().err == message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
