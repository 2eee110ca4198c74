"""Processes that load torch while their parent still does, and wait for a request.

Importing torch takes seconds, in the parent and once more in each process that it starts. Nothing here needs torch: a command that will
want such processes can start them before it imports it.
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
ENVIRONMENT = {"TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHINDUCTOR_COMPILE_THREADS": "4"}  # theirs: they share the host's cores as they compile


class Waiting:
    """A process that runs a module with two words: the pipe to answer through, and its parent's number.

    Requests come in on its standard input. It answers through a pipe of its own: whatever else it prints is dropped.
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
        """Hand it an object; one that has ended does not mind, and will not answer either."""
        assert self.process.stdin is not None
        with suppress(OSError):
            send(what, self.process.stdin)

    def end(self, patience_s: float = 0.0) -> None:
        """End it; it gets this long to end of itself."""
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdin is not None
        for pipe in (self.process.stdin, self.answers):
            with suppress(OSError):  # the last request may be unread
                pipe.close()


@contextmanager
def waiting(count: int, module: str = TIMER, environment: Mapping[str, str] = ENVIRONMENT) -> Iterator[list[Waiting]]:
    """So many of them; whoever takes one from the list ends it, and those that nobody took are ended here."""
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
    """Whether the system shows a GPU, and the user does not hide it: a guess, made without torch."""
    return any(folder.glob(DEVICES)) and os.environ.get("CUDA_VISIBLE_DEVICES") not in ("", "-1")
