"""Labs with services for tests: made by the command line, as a user makes them, and always removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from meshwright.lab import nodes, state, system
from meshwright.lab.services import Folder


def needs(tools: Mapping[str, str]) -> None:
    """Skip, and say why, where programs are missing."""
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool, path=system.PATH) is None})
    if missing:
        pytest.skip(f"this machine has no {', '.join(missing)}")


class OnLab:
    """A lab that is up."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def folder(self) -> Folder:
        return nodes.folder_of(self.name, state.FOLDER)

    @property
    def description(self) -> Path:
        return state.description_path(self.name)

    def call(self, *words: str, timeout_s: float = 420.0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command of meshwright."""
        return subprocess.run(
            [sys.executable, "-m", "meshwright", *words], capture_output=True, text=True, timeout=timeout_s, cwd=cwd, check=False
        )

    def on_login(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A command on the login host."""
        return self.call("lab", "login", "--name", self.name, *words, cwd=cwd)

    def launch(self, plan: Path, *words: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """`meshwright launch` on the login host, in the plan's folder."""
        site = str(self.folder.site)
        return self.on_login("meshwright", "launch", str(plan), "--site", site, *words, "--", *options, cwd=plan.parent)


@contextmanager
def made(name: str, *options: str) -> Iterator[OnLab]:
    """A lab with these options of `lab up`."""
    lab = OnLab(f"{name}{os.getpid() % 10**7}")
    try:
        done = lab.call("lab", "up", "--name", lab.name, *options)
        assert done.returncode == 0, done.stderr
        yield lab
    finally:
        state.down(lab.name)
