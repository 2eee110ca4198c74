"""The command of a job on this machine: `meshwright train`, which starts all ranks itself."""

from __future__ import annotations

import shlex
import sys

from meshwright.engines.request import PLAN_FILE, JobFile, Request, settings
from meshwright.engines.site import Site

COMMAND_FILE = "command.sh"


def local_files(request: Request) -> list[JobFile]:
    """The command, to be shown."""
    words = [*(f"{name}={value}" for name, value in settings(request.site).items()), *local_command(request)]
    return [JobFile(COMMAND_FILE, f"{shlex.join(words)}\n", is_kept=False)]


def local_command(request: Request) -> list[str]:
    """The words of the command. Unless the site names a Python, it is the one that runs now."""
    named = request.site.python
    again = ["--keep-going"] if request.site.restarts and "--keep-going" not in request.options else []
    return [sys.executable if named == Site().python else named, *request.train(str(request.folder / PLAN_FILE)), *again]
