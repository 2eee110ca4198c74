"""A process for each slice on a GPU: all compile at the same time, and each is timed alone when its turn comes.

Compiling takes most of the first step of a slice and runs on the host. If slices compiled one after another, this would take most of the
measurement. A process keeps its compiled code, and frees its GPU memory until its turn comes.
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

ONE = 1  # one layer is enough to compile: all layers have the same shapes
PATIENCE_S = 5.0  # time for a process to end after it has sent its result
LATE = "they would have taken longer than allowed (--seconds)"
LEFT = "its process has ended"


class SliceError(MeshwrightError):
    """A slice that could not be measured, and the reason."""


class Worker:
    """The process that times one slice. It gets the slice, answers once it has compiled, gets a time limit, and answers with the result."""

    def __init__(self, cut: Cut, device: torch.device, process: Waiting) -> None:
        self.cut, self.process, self.answers = cut, process, process.answers
        process.send((cut, device))

    def slice(self, until_s: float, within_s: float = math.inf) -> Slice:
        """Time the slice now; raise an error if the result does not come before `until_s` of the performance counter.

        It should take no longer than `within_s`, so that time is left for the others; it uses fewer rounds if necessary.
        """
        self.process.send(within_s)
        if not _speaking([self], until_s):
            raise SliceError(LATE)
        found = self.hear()
        assert isinstance(found, Slice)
        self.end(PATIENCE_S)  # the next slice needs its memory
        return found

    def hear(self) -> object:
        """The answer of the process; an error if the answer says why it failed."""
        try:
            answer = pickle.load(self.answers)
        except Exception as error:  # an incomplete answer can raise anything
            raise SliceError(LEFT) from error
        if isinstance(answer, str):
            raise SliceError(answer)
        return answer

    def end(self, patience_s: float = 0.0) -> None:
        """End the process, after it had this long to end by itself."""
        self.process.end(patience_s)


def _speaking(some: Sequence[Worker], until_s: float) -> list[Worker]:
    """The processes that have answered, as soon as at least one has; none if the time is over."""
    heard = select.select([worker.answers for worker in some], [], [], max(until_s - time.perf_counter(), 0.0))[0]
    return [worker for worker in some if worker.answers in heard]


def compiled(started: Sequence[Worker], until_s: float, report: Callable[[str], None]) -> dict[Worker, SliceError]:
    """Wait until all have compiled. Those that have not in time are ended, because nothing may run during timing; return which, and why."""
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
    """A process for each slice, which starts to compile; the `ready` processes are used first. All of them are ended at the end."""
    made: list[Worker] = []
    try:
        for cut in cuts:
            made.append(Worker(cut, device, ready.pop() if ready else Waiting(TIMER, ENVIRONMENT)))
        yield made
    finally:
        for worker in made:
            worker.end()


def main() -> None:
    """Compile the slice that is named on standard input, wait for the request, and time it; errors are sent as an answer, not printed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    pipe, parent = (int(word) for word in sys.argv[1:3])
    end_with(parent)
    asker, answers = sys.stdin.buffer, os.fdopen(pipe, "wb")
    if flash_attention.installed():
        with suppress(Exception):  # if it is broken, its trial shows this
            flash_attention.load()  # takes seconds, which would otherwise count as compiling
    cut, device = pickle.load(asker)
    with suppress(EOFError, BrokenPipeError):  # the parent has ended
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
        except Exception as error:  # an error of a compiler or a kernel: the others must go on
            lines = str(error).strip().splitlines()
            send(f"{type(error).__name__}: {lines[0] if lines else 'no message'}", answers)


def _compile(cut: Cut, device: torch.device) -> None:
    """Run one step of one layer. If memory is short because other processes use it, the slice is compiled when its turn comes."""
    with suppress(torch.OutOfMemoryError):
        _step(cut, device)
    release(device)  # after all tensors of the step are gone


def _step(cut: Cut, device: torch.device) -> None:
    runner = Runner(cut, ONE, device)
    try:
        runner.step()
    finally:
        runner.close()


if __name__ == "__main__":
    main()
