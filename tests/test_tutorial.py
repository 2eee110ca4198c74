"""The tutorial works: its commands run in order, in one empty folder, with the exit codes that it shows."""

import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[1] / "docs" / "tutorial.md"
BLOCK = re.compile(r"(?:^<!-- (.*?) -->\n)?^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w-]+\.toml)\n")
LIMIT_S = 240


@dataclass(frozen=True)
class Command:
    """A command of the tutorial: its words, whether it is shown to be refused, and whether it needs minutes."""

    words: list[str]
    is_refused: bool
    is_long: bool


def steps_of(text: str) -> Iterator[Command | tuple[str, str]]:
    """What a reader does from the top: commands to run, and files (name, content) to write."""
    for mark, language, block in BLOCK.findall(text):
        if mark.startswith("not run: "):
            continue
        if language == "toml" and (name := FILE_NAME.match(block)):
            yield name[1], block
        if language == "console":
            lines = block.replace("\\\n", " ").splitlines()
            for line, after in pairwise([*lines, ""]):
                if line.startswith("$ "):
                    yield Command(shlex.split(line[2:]), after.startswith("meshwright: "), mark == "long")


def environment(folder: Path) -> dict[str, str]:
    """An environment without a hardware profile of this machine, and with output that is not held back."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def run(command: Command, folder: Path) -> None:
    arguments = [sys.executable, "-m", *command.words]
    done = subprocess.run(arguments, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == (2 if command.is_refused else 0), f"{shlex.join(command.words)}\n{done.stdout}{done.stderr}"


def look_at_the_live_page(command: Command, folder: Path) -> None:
    """Start `meshwright serve` on a free port, ask for its page and its runs, and stop it."""
    arguments = [sys.executable, "-m", *command.words, "--port", "0"]
    with subprocess.Popen(arguments, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            address = next(line.split()[1] for line in served.stdout if line.startswith("page"))
            with urllib.request.urlopen(address, timeout=30) as page:
                assert b"<html" in page.read().lower()
            with urllib.request.urlopen(f"{address}api/runs", timeout=30) as runs:
                assert b'"first"' in runs.read()
        finally:
            served.terminate()


@pytest.mark.parametrize("with_long", [False, pytest.param(True, marks=pytest.mark.long)], ids=["quick", "with measure"])
def test_the_tutorial_runs_from_the_top(with_long: bool, tmp_path: Path) -> None:
    for step in steps_of(TUTORIAL.read_text(encoding="utf-8")):
        if isinstance(step, tuple):
            (tmp_path / step[0]).write_text(step[1], encoding="utf-8")
        elif step.words[:2] == ["meshwright", "serve"]:
            look_at_the_live_page(step, tmp_path)
        elif with_long or not step.is_long:
            run(step, tmp_path)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"simulated", "week", "first"}
    assert all((tmp_path / name).stat().st_size > 0 for name in ("plan.json", "small.json", "first.html", "first.csv"))


def test_the_tutorial_goes_the_whole_way() -> None:
    verbs = {step.words[1] for step in steps_of(TUTORIAL.read_text(encoding="utf-8")) if isinstance(step, Command)}
    assert verbs >= {"describe", "predict", "plan", "simulate", "train", "measure", "report", "ledger", "serve", "audit"}


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-cluster"):
        run(Command(["meshwright", "describe", "no-such-cluster"], is_refused=False, is_long=False), tmp_path)
