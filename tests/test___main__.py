"""`python -m meshwright` is the command line, with its exit codes."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from meshwright import cli


def test_as_a_module_it_prints_errors_and_gives_the_exit_code() -> None:
    done = subprocess.run([sys.executable, "-m", "meshwright", "describe", "h10"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("meshwright: nothing named 'h10' is in the catalogue\n")
    assert "Traceback" not in done.stderr


def test_as_a_module_it_does_what_the_command_does() -> None:
    done = subprocess.run([sys.executable, "-m", "meshwright", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() and done.stderr == ""


def test_to_import_it_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "meshwright.__main__", raising=False)
    monkeypatch.setattr(cli, "run", lambda: pytest.fail("it ran"))
    assert importlib.import_module("meshwright.__main__").run is cli.run
