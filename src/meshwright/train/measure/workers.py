"""A process for each slice on a GPU: all compile at once, and each is timed alone when its turn comes.

Compiling takes most of a slice's first step and runs on the host; one after another it would be most of the measurement. A process keeps
what it compiled, and gives its memory back until it is asked.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch

from meshwright.describe.profile import Slice
from meshwright.errors import MeshwrightError
from meshwright.train.kernels import flash_attention
from meshwright.train.launch import end_with
from meshwright.train.measure.clock import release
from meshwright.train.measure.slices import Cut, Runner, alone, slice_of
from meshwright.train.measure.waiting import ENVIRONMENT, TIMER, Waiting, send

ONE = 1  # layer is enough to compile for: all have the same shapes
PATIENCE_S = 5.0  # time that a process has to end after its result
LATE = "they would have taken longer than allowed (--seconds)"
LEFT = "its process has ended"


class SliceError(MeshwrightError):
    """A slice that cannot be had, and why."""


class Worker:
    """The process that times one slice. It gets the slice, answers once it has compiled, gets a time limit, and answers with the result."""

    def __init__(self, cut: Cut, device: torch.device, process: Waiting) -> None:
        self.cut, self.process, self.answers = cut, process, process.answers
        process.send((cut, device))

    def slice(self, until_s: float, within_s: float = math.inf) -> Slice:
        """Its slice, timed now; raises where that is not before `until_s`, by the performance counter.

        It is to take `within_s`, so that others have their time, and takes fewer rounds for that.
        """
        self.process.send(within_s)
        if not _speaking([self], until_s):
            raise SliceError(LATE)
        found = self.hear()
        assert isinstance(found, Slice)
        self.end(PATIENCE_S)  # its memory is for the next
        return found

    def hear(self) -> object:
        """What it answers; raises where that is why it cannot."""
        try:
            answer = pickle.load(self.answers)
        except Exception as error:  # of half an answer, whatever it makes of it
            raise SliceError(LEFT) from error
        if isinstance(answer, str):
            raise SliceError(answer)
        return answer

    def end(self, patience_s: float = 0.0) -> None:
        """End the process, which gets this long to end of itself."""
        self.process.end(patience_s)


def _speaking(some: Sequence[Worker], until_s: float) -> list[Worker]:
    """The processes that have answered, as soon as one has; none if time is up."""
    heard = select.select([worker.answers for worker in some], [], [], max(until_s - time.perf_counter(), 0.0))[0]
    return [worker for worker in some if worker.answers in heard]


def compiled(started: Sequence[Worker], until_s: float, report: Callable[[str], None]) -> dict[Worker, SliceError]:
    """Wait until all have compiled. Who has not by then is ended, since nothing may run beside what is timed; of whom, and why."""
    waiting, failed = list(started), {}
    while waiting and (heard := _speaking(waiting, until_s)):
        for worker in heard:
            waiting.remove(worker)
            try:
                worker.hear()
                report(f"compiled for {worker.cut.words}")
            except SliceError as error:
                failed[worker] = error
    failed |= {worker: SliceError(LATE) for worker in waiting}
    for worker in failed:
        worker.end()
    return failed


@contextmanager
def workers(cuts: Sequence[Cut], device: torch.device, ready: list[Waiting] | None = None) -> Iterator[list[Worker]]:
    """A process for each slice, compiling, of those that are `ready` as far as they go; none is left running."""
    made: list[Worker] = []
    try:
        for cut in cuts:
            made.append(Worker(cut, device, ready.pop() if ready else Waiting(TIMER, ENVIRONMENT)))
        yield made
    finally:
        for worker in made:
            worker.end()


def main() -> None:
    """Compile for the slice that standard input names, wait for the request, time it; errors are sent as an answer, not printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asked ends this process
    pipe, parent = (int(word) for word in sys.argv[1:3])
    end_with(parent)
    asker, answers = sys.stdin.buffer, os.fdopen(pipe, "wb")
    if flash_attention.installed():
        with suppress(Exception):  # a broken one shows in its trial
            flash_attention.load()  # takes seconds that would otherwise count as compiling
    cut, device = pickle.load(asker)
    with suppress(EOFError, BrokenPipeError):  # the parent has gone
        try:
            undo = alone(device)
            _compile(cut, device)
            send(None, answers)
            within_s = pickle.load(asker)
            send(slice_of(cut, device, within_s=within_s), answers)
            undo()
        except (EOFError, BrokenPipeError):
            raise
        except torch.OutOfMemoryError:
            send("out of memory", answers)
        except Exception as error:  # of a compiler or a kernel: the others must go on
            lines = str(error).strip().splitlines()
            send(f"{type(error).__name__}: {lines[0] if lines else 'no message'}", answers)


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
