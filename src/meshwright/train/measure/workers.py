"""A process for each slice on a GPU: all compile at once, and each is timed alone when its turn comes.

Compiling takes most of a slice's first step and runs on the host; one after another it would be most of the measurement. A process keeps
what it compiled, and gives its memory back until it is asked.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Any

import torch

from meshwright.describe.profile import Slice
from meshwright.errors import MeshwrightError
from meshwright.train.measure.clock import release
from meshwright.train.measure.slices import Cut, Runner, alone, slice_of

THREADS = "4"  # compilers of each process: all processes share the host
ONE = 1  # layer is enough to compile for: all have the same shapes
PATIENCE_S = 5.0  # a process that has told what it found gets this long to end
LEFT = "its process has ended"


class SliceError(MeshwrightError):
    """A slice that cannot be had, and why."""


class Worker:
    """The process that times one slice. It is told the slice, answers when it has compiled, is asked, and answers with what it found."""

    def __init__(self, cut: Cut, device: torch.device) -> None:
        self.cut = cut
        environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHINDUCTOR_COMPILE_THREADS": THREADS}
        command = [sys.executable, "-m", "meshwright.train.measure.workers"]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self._tell((cut, device))

    def wait(self, until_s: float) -> None:
        """Wait until it has compiled; raises where that is not before `until_s`, by the performance counter."""
        self._told(until_s)

    def slice(self, until_s: float) -> Slice:
        """Its slice, timed now."""
        self._tell("go")
        found = self._told(until_s)
        assert isinstance(found, Slice)
        self.end(PATIENCE_S)  # its memory is for the next
        return found

    def end(self, patience_s: float = 0.0) -> None:
        """End the process, which gets this long to end of itself."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # what it was told last may be unread
                pipe.close()

    def _tell(self, what: object) -> None:
        with suppress(OSError):  # a process that has ended will not answer either
            assert self._process.stdin is not None
            _send(what, self._process.stdin)

    def _told(self, until_s: float) -> Any:
        answers = self._process.stdout
        assert answers is not None
        if not select.select([answers], [], [], max(until_s - time.perf_counter(), 0.0))[0]:
            raise SliceError("they would have taken longer than allowed (--seconds)")
        try:
            said = pickle.load(answers)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise SliceError(LEFT) from error
        if isinstance(said, str):
            raise SliceError(said)
        return said


@contextmanager
def workers(cuts: Sequence[Cut], device: torch.device) -> Iterator[list[Worker]]:
    """A process for each slice, compiling; none is left running."""
    made: list[Worker] = []
    try:
        for cut in cuts:
            made.append(Worker(cut, device))
        yield made
    finally:
        for worker in made:
            worker.end()


def main() -> None:
    """Compile for the slice that standard input names, wait to be asked, time it; what goes wrong is told, not printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked ends this process
    asker = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what else is printed goes where nobody reads
    cut, device = pickle.load(asker)
    with suppress(EOFError, BrokenPipeError):  # nobody asks any more
        try:
            undo = alone(device)
            _compile(cut, device)
            _send(None, answers)
            pickle.load(asker)
            _send(slice_of(cut, device), answers)
            undo()
        except (EOFError, BrokenPipeError):
            raise
        except torch.OutOfMemoryError:
            _send("out of memory", answers)
        except Exception as error:  # of a compiler or a kernel: the others must go on
            said = str(error).strip().splitlines()
            _send(f"{type(error).__name__}: {said[0] if said else 'no message'}", answers)


def _send(what: object, pipe: IO[bytes]) -> None:
    pickle.dump(what, pipe)
    pipe.flush()


def _compile(cut: Cut, device: torch.device) -> None:
    """One step of one layer. Memory that others hold now is no reason to give up: the slice then compiles when its turn comes."""
    with suppress(torch.OutOfMemoryError):
        runner = Runner(cut, ONE, device)
        runner.step()
        runner.close()
    release(device)


if __name__ == "__main__":
    main()
