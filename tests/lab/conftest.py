"""A lab of a test's own: made only where root and the tools are there, and always removed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshwright.errors import MeshwrightError
from meshwright.lab import state, system
from meshwright.lab.description import Lab

sys.path.insert(0, str(Path(__file__).parent))  # `mapped` of this folder


def why_not() -> str:
    """Why no lab can be made here; empty if one can."""
    try:
        system.check_able()
        system.execute(("ip", "netns", "add", "mw-probe"))
        system.execute(("ip", "-n", "mw-probe", "link", "add", "br0", "type", "bridge"))
        system.execute(
            ("tc", "-n", "mw-probe", "qdisc", "replace", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "20000b", "limit", "1mb")
        )
    except MeshwrightError as error:
        return error.what
    finally:
        if os.path.exists("/run/netns/mw-probe"):
            system.execute(("ip", "netns", "del", "mw-probe"))
    return ""


@pytest.fixture(scope="session")
def can_make_labs() -> None:
    """Skip, and say why, where no lab can be made."""
    if reason := why_not():
        pytest.skip(f"no lab can be made here: {reason}")


Make = Callable[..., state.State]


@pytest.fixture
def make(can_make_labs: None, tmp_path: Path) -> Iterator[Make]:
    """Makes labs named `test...` whose files are in the test's folder; removes them at the end."""
    made: list[str] = []

    def make_lab(**parts: object) -> state.State:
        lab = Lab(**{"name": f"t{os.getpid() % 10**8}", **parts})  # type: ignore[arg-type]
        made.append(lab.name)
        return state.up(lab, tmp_path)

    yield make_lab
    for name in made:
        state.down(name, tmp_path)
