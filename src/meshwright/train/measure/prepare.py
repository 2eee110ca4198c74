"""Compile what slices need, all of them at once: a process each takes one step, and leaves the compiler's cache behind.

Compiling takes most of a slice's first step and runs on the host; one after another it would be most of the measurement. What a process
does not manage is compiled where it is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict

from meshwright.describe.model import Model, RotaryScaling
from meshwright.train.measure.slices import Cut, Runner, alone

LONGEST_S = 90.0
WORKERS = "4"  # compilers of each process: all processes share the host
ONE = 1  # layer is enough: all have the same shapes


class Preparation:
    """Processes that compile, one for each slice."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._until_s = time.monotonic() + LONGEST_S

    def start(self, cut: Cut) -> None:
        """Let one more process compile for a slice."""
        environment = {**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", "TORCHINDUCTOR_COMPILE_THREADS": WORKERS}
        command = [sys.executable, "-m", "meshwright.train.measure.prepare", json.dumps(asdict(cut))]
        self._running.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    def wait(self) -> None:
        """Wait until all have ended, or `LONGEST_S` have passed since the first began."""
        with suppress(subprocess.TimeoutExpired):
            for each in self._running:
                each.wait(timeout=max(self._until_s - time.monotonic(), 0.1))

    def end(self) -> None:
        """End what still runs."""
        for each in self._running:
            if each.poll() is None:
                each.kill()
            each.wait()


@contextmanager
def preparing(cuts: Sequence[Cut]) -> Iterator[Preparation]:
    """Compile for all slices in the background; nothing is left running."""
    made = Preparation()
    try:
        for cut in cuts:
            made.start(cut)
        yield made
    finally:
        made.end()


def cut_of(line: str) -> Cut:
    """The slice that `prepare` wrote as one line."""
    data = json.loads(line)
    shapes = {key: value for key, value in data.pop("model").items() if key != "sources"}
    if shapes["rotary_scaling"]:
        shapes["rotary_scaling"] = RotaryScaling(**shapes["rotary_scaling"])
    return Cut(model=Model(**shapes), **data)


def main() -> None:
    """Take one step of the slice that the command line names."""
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    undo = alone(device)
    runner = Runner(cut_of(sys.argv[1]), ONE, device)
    runner.step()
    runner.close()
    undo()


if __name__ == "__main__":
    main()
