"""The engines by name."""

from __future__ import annotations

from meshwright.engines.kubernetes_files import kubernetes_files
from meshwright.engines.local_files import local_files
from meshwright.engines.request import JobFile, Request
from meshwright.engines.slurm_files import slurm_files
from meshwright.engines.ssh_files import ssh_files

FILES = {"slurm": slurm_files, "kubernetes": kubernetes_files, "ssh": ssh_files, "local": local_files}


def files_of(engine: str, request: Request) -> list[JobFile]:
    """The files of a job in the words of its engine."""
    return FILES[engine](request)
