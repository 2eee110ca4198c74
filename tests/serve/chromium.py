"""Debian's Chromium for the tests that click: found, or installed where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
INSTALL_S = 240


@cache
def chromium() -> str | None:
    """The browser's path, or None where there is none and none could be installed."""
    return _found() or _installed()


def _found() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def _installed() -> str | None:
    """The browser once Debian's package is there; only root may install, and one worker at a time does."""
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    from filelock import FileLock

    with FileLock(Path(tempfile.gettempdir()) / "meshwright-chromium.lock"):
        if _found() is None:
            command = ["apt-get", "install", "--yes", "--no-install-recommends", "chromium"]
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            try:
                subprocess.run(command, env=environment, capture_output=True, timeout=INSTALL_S, check=False)
            except subprocess.TimeoutExpired:
                return None
    return _found()
