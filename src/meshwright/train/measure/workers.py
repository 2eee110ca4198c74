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
from meshwright.train.launch import end_with
from meshwright.train.measure.clock import release
from meshwright.train.measure.slices import Cut, Runner, alone, slice_of

THREADS = "4"  # compilers of each process: all processes share the host
ONE = 1  # layer is enough to compile for: all have the same shapes
PATIENCE_S = 5.0  # a process that has told what it found gets this long to end
LATE = "they would have taken longer than allowed (--seconds)"
LEFT = "its process has ended"


class SliceError(MeshwrightError):
    """A slice that cannot be had, and why."""


class Worker:
    """The process that times one slice. It is told the slice, answers when it has compiled, is asked, and answers with what it found.

    It answers through a pipe of its own: whatever else a process prints goes nowhere.
    """

    def __init__(self, cut: Cut, device: torch.device) -> None:
        self.cut = cut
        reading, writing = os.pipe()
        self.answers = os.fdopen(reading, "rb")
        environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHINDUCTOR_COMPILE_THREADS": THREADS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "meshwright.train.measure.workers", str(writing), str(os.getpid())],
            env=environment,
            pass_fds=(writing,),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(writing)
        self._tell((cut, device))

    def slice(self, until_s: float) -> Slice:
        """Its slice, timed now; raises where that is not before `until_s`, by the performance counter."""
        self._tell("go")
        if not _speaking([self], until_s):
            raise SliceError(LATE)
        found = self.hear()
        assert isinstance(found, Slice)
        self.end(PATIENCE_S)  # its memory is for the next
        return found

    def hear(self) -> Any:
        """What it answers; raises where that is why it cannot."""
        try:
            said = pickle.load(self.answers)
        except Exception as error:  # of half an answer, whatever it makes of it
            raise SliceError(LEFT) from error
        if isinstance(said, str):
            raise SliceError(said)
        return said

    def end(self, patience_s: float = 0.0) -> None:
        """End the process, which gets this long to end of itself."""
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdin is not None
        for pipe in (self._process.stdin, self.answers):
            with suppress(OSError):  # what it was told last may be unread
                pipe.close()

    def _tell(self, what: object) -> None:
        with suppress(OSError):  # a process that has ended will not answer either
            assert self._process.stdin is not None
            _send(what, self._process.stdin)


def _speaking(some: Sequence[Worker], until_s: float) -> list[Worker]:
    """Those who answer, as soon as one does; nobody where time is up."""
    heard = select.select([worker.answers for worker in some], [], [], max(until_s - time.perf_counter(), 0.0))[0]
    return [worker for worker in some if worker.answers in heard]


def compiled(started: Sequence[Worker], until_s: float) -> dict[Worker, SliceError]:
    """Wait until all have compiled. Who has not by then is ended, since nothing may run beside what is timed; of whom, and why."""
    waiting, failed = list(started), {}
    while waiting and (heard := _speaking(waiting, until_s)):
        for worker in heard:
            waiting.remove(worker)
            try:
                worker.hear()
            except SliceError as error:
                failed[worker] = error
    failed |= {worker: SliceError(LATE) for worker in waiting}
    for worker in failed:
        worker.end()
    return failed


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
    pipe, parent = (int(word) for word in sys.argv[1:3])
    end_with(parent)
    asker, answers = sys.stdin.buffer, os.fdopen(pipe, "wb")
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
        _step(cut, device)
    release(device)  # when nothing of the step is held any more


def _step(cut: Cut, device: torch.device) -> None:
    runner = Runner(cut, ONE, device)
    try:
        runner.step()
    finally:
        runner.close()


if __name__ == "__main__":
    main()
