"""Processes that this command starts and that must end with it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1  # prctl(2): a signal when the parent dies
POLL_S = 0.05


def started(
    words: Sequence[str], log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> subprocess.Popen[bytes]:
    """A process whose output is in a file, and that is asked to stop when this process ends for any reason (Linux only)."""
    parent = os.getpid()
    with open(log, "ab") as out:
        return subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,  # Ctrl-C is for this process, which asks the other one to stop
            preexec_fn=lambda: _end_with(parent),
        )


def _end_with(parent: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)


def ended(processes: Sequence[subprocess.Popen[bytes]], grace_s: float) -> None:
    """End the input of processes, which is how ranks on other hosts are ended, and wait; what is left after `grace_s` is killed."""
    for process in processes:
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
    until_s = time.monotonic() + grace_s
    while any(process.poll() is None for process in processes) and time.monotonic() < until_s:
        time.sleep(POLL_S)
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
