"""Plans for jobs: racks of many nodes, replicas of two nodes, and a machine's own cores as two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.describe.load import EMULATED
from meshwright.engines.request import Request
from meshwright.engines.site import Site
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_of

BF16 = ("workload.precision=bf16",)
JOBS = {
    "racks": (("llama-3.1-8b", "gb200-nvl72-ndr", "mlperf-llama31-8b"), 128, "tp=4,dp=32,mbs=1", BF16),
    "replicas": (("llama-3.1-8b", "hgx-h200-ndr", "mlperf-llama31-8b"), 32, "tp=8,pp=2,dp=2,mbs=1", BF16),
    "cores": (("llama-2m", EMULATED, "python-stdlib"), 8, "tp=2,pp=2,dp=2,mbs=4", ()),
}


@pytest.fixture(scope="session")
def plans() -> dict[str, Plan]:
    return {
        name: plan_of(Job(*nouns, gpus=gpus, changes=changes, profile="none").forecast(layout), name)
        for name, (nouns, gpus, layout, changes) in JOBS.items()
    }


@pytest.fixture
def request_of(plans, tmp_path):
    def made(plan: str = "racks", site: Site | None = None, **more) -> Request:
        given = {"name": "first", "folder": tmp_path / "jobs" / "first", "runs": Path("/shared/runs"), **more}
        return Request(plan=plans[plan], site=site or Site(), **given)

    return made


class Programs:
    """Programs of an engine, replaced by scripts that answer from files and note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()

    def add(self, name: str, body: str) -> None:
        """A program as the body of a bash script, which runs in the folder."""
        path = self.folder / "bin" / name
        path.write_text(f'#!/bin/bash\ncd {self.folder}\necho "{name} $*" >> calls\n{body}\n')
        path.chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


# The next line of a file, the last one again and again.
NEXT = 'next() { head -n 1 "$1"; [ "$(wc -l < "$1")" -gt 1 ] && sed -i 1d "$1"; true; }\n'


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    folder = tmp_path / "fake"
    folder.mkdir()
    made = Programs(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    return made


@pytest.fixture
def slurm(programs) -> Programs:
    """A Slurm of four nodes with eight H200 each, which starts a job at once."""
    programs.write("nodes", "".join(f"{part}|n{i}|gpu:h200:8(S:0-1)\n" for part in ("low", "high") for i in range(4)))
    programs.write("states", "RUNNING|None|low|n[0-3]\nCOMPLETED|None|low|n[0-3]\n")
    programs.write("pending", "")
    programs.add("sinfo", "cat nodes")
    programs.add("sbatch", 'if [ -e refusal ]; then cat refusal >&2; exit 1; fi; cp "${@: -1}" script; echo 17')
    programs.add("squeue", NEXT + 'case "$*" in *PENDING*) cat pending;; *) next states;; esac')
    programs.add("sacct", "[ -e account ] && cat account")
    programs.add("scontrol", "exit 1")
    programs.add("scancel", 'echo "CANCELLED|None|low|" > states')
    return programs
