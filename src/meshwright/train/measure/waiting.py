"""Processes that load torch while their parent loads it too, and then wait for a request.

Importing torch takes seconds, in the parent and again in each process that it starts. This module does not need torch, so a command can
start such processes before it imports torch itself.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

DEVICES = "nvidia[0-9]*"  # files in /dev, one for each GPU
TIMER = "meshwright.train.measure.workers"  # the module of processes that time slices of a training step
ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHINDUCTOR_COMPILE_THREADS": "4"}  # they share the host's cores to compile


class Waiting:
    """A process that runs a module with two arguments: the pipe for its answers, and the process number of its parent.

    Requests come on its standard input. It answers through a pipe of its own; everything else that it prints is dropped.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        reading, writing = os.pipe()
        self.answers: IO[bytes] = os.fdopen(reading, "rb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, str(writing), str(os.getpid())],
            env={**os.environ, **environment},
            pass_fds=(writing,),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(writing)

    def send(self, what: object) -> None:
        """Send it an object; no error is raised if the process has ended, but no answer will come."""
        assert self.process.stdin is not None
        with suppress(OSError):
            send(what, self.process.stdin)

    def end(self, patience_s: float = 0.0) -> None:
        """End the process, after it had this long to end by itself."""
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        for pipe in (self.process.stdin, self.answers):
            with suppress(OSError):  # the process may not have read the last request
                pipe.close()


@contextmanager
def waiting(count: int, module: str = TIMER, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[list[Waiting]]:
    """A list of so many processes; code that takes one from the list must end it, and those left in the list are ended here."""
    made: list[Waiting] = []
    try:
        for _ in range(count):
            made.append(Waiting(module, environment))
        yield made
    finally:
        for one in made:
            one.end()


def send(what: object, pipe: IO[bytes]) -> None:
    """Write an object into a pipe."""
    pickle.dump(what, pipe)
    pipe.flush()


def sees_gpu(folder: Path = Path("/dev")) -> bool:
    """Whether the system shows a GPU that the user does not hide: a guess, made without torch."""
    return any(folder.glob(DEVICES)) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
