"""What every engine can do, and the engines by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshwright.engines.kubernetes_files import kubernetes_files
from meshwright.engines.local_files import local_files
from meshwright.engines.request import JobFile, Request
from meshwright.engines.slurm_files import slurm_files
from meshwright.engines.ssh_files import ssh_files

WAITING, RUNNING, DONE, FAILED, CANCELLED = "waiting", "running", "done", "failed", "cancelled"
ACTIVE = (WAITING, RUNNING)

FILES = {"slurm": slurm_files, "kubernetes": kubernetes_files, "ssh": ssh_files, "local": local_files}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A job as its engine sees it now."""

    phase: str  # one of those above
    reason: str = ""  # in the engine's own words
    position: tuple[int, int] | None = None  # in the queue, from 1, and how many wait
    nodes: tuple[str, ...] = ()


class Engine(Protocol):
    """An engine: it is asked to run one job."""

    outlives: bool  # whether a job goes on when `meshwright launch` ends

    def check(self, request: Request) -> None:
        """Raise an error if the engine is not there, or could never run the job: better now than in a queue."""

    def submit(self, request: Request) -> str:
        """Submit the job whose files are in its folder; return its name with the engine."""

    def state(self, job: str) -> State:
        """What the engine says of the job."""

    def cancel(self, job: str) -> None:
        """End the job, and remove what was made for it. A job that has ended is no error."""

    def read(self, path: Path, offset: int) -> bytes:
        """What a file of the run has from `offset` on, as the nodes see it; nothing where it is not there yet."""

    def by_hand(self, job: str) -> str:
        """The command with which a user ends the job."""


def files_of(engine: str, request: Request) -> list[JobFile]:
    """The files of a job in the words of its engine."""
    return FILES[engine](request)


def engine_of(name: str, request: Request) -> Engine:
    """The engine of that name, for this job."""
    from meshwright.engines.kubernetes import Kubernetes
    from meshwright.engines.local import Local
    from meshwright.engines.slurm import Slurm
    from meshwright.engines.ssh import Ssh

    makers: Mapping[str, Callable[[], Engine]] = {
        "slurm": Slurm,
        "kubernetes": lambda: Kubernetes(request.name, request.site.kubernetes.kind, request.site.kubernetes.namespace),
        "ssh": lambda: Ssh(request),
        "local": lambda: Local(request),
    }
    return makers[name]()


def read_from(path: Path, offset: int, most_bytes: int = 1 << 22) -> bytes:
    """What a file that this machine can see has from `offset` on."""
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(most_bytes)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return b""
