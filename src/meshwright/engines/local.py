"""Jobs on this machine: `meshwright train` as a process that ends with this one."""

from __future__ import annotations

import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

from meshwright.describe.this_machine import gpu_names
from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, State, read_from
from meshwright.engines.local_files import local_command
from meshwright.engines.processes import ended, started
from meshwright.engines.request import OUTPUT_FILE, Request, settings
from meshwright.errors import InputError

GRACE_S = 60.0  # to save


class Local:
    """This machine, for one job."""

    outlives = False

    def __init__(self, request: Request) -> None:
        self.request = request
        self.process: subprocess.Popen[bytes] | None = None
        self.was_cancelled = False

    def check(self, request: Request) -> None:
        """Raise an error if this machine cannot run the plan."""
        if request.site.python == "python3" and find_spec("torch") is None:
            raise InputError("training needs torch", where="this Python", fix="pip install 'meshwright[train]'")
        here, needed = len(gpu_names()), request.plan.layout.num_ranks
        if request.shape.needs_gpus and here < needed and "--ranks-per-gpu" not in " ".join(request.options):
            raise InputError(
                f"the plan needs {needed} {request.plan.cluster.accelerator.name}, and this machine has {here} GPUs",
                where=f"plan {request.plan.name}",
                fix="plan for this-machine, or launch on the plan's cluster: --on slurm",
            )

    def submit(self, request: Request) -> str:
        """The process's number."""
        words = local_command(request)
        try:
            self.process = started(words, request.folder / OUTPUT_FILE, settings(request.site))
        except OSError as error:
            raise InputError(
                f"cannot start {words[0]}: {error.strerror}", where="python of the site file", fix="name a Python with meshwright"
            ) from None
        return str(self.process.pid)

    def state(self, job: str) -> State:
        """Whether the process runs, and how it ended."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return State(phase=RUNNING, nodes=("this machine",))
        ended([self.process], GRACE_S)
        if self.was_cancelled:
            return State(phase=CANCELLED, reason="it was asked to stop")
        if code < 0:
            return State(phase=FAILED, reason=f"it was ended by {signal.Signals(-code).name}")
        return State(phase=FAILED if code else DONE, reason=f"exit status {code}")

    def cancel(self, job: str) -> None:
        """Ask the ranks to save and stop, and wait for that."""
        self.was_cancelled = True
        if self.process:
            self.process.terminate()
            ended([self.process], GRACE_S)

    def read(self, path: Path, offset: int) -> bytes:
        """The file."""
        return read_from(path, offset)

    def by_hand(self, job: str) -> str:
        """The command with which a user ends the job."""
        return f"kill {job}"
