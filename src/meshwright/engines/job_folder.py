"""The folder of a job's files: the plan, the site file, what the engine is given, and what it answered."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from meshwright.engines.replan import Placed, placed
from meshwright.engines.request import (
    ALLOCATED_FILE,
    BAD_FILE,
    HOSTS_FILE,
    NODES_FILE,
    PLACED_FILE,
    PLACING_FILE,
    PLAN_FILE,
    RANKS_FILE,
    SECRET_FILE,
    SITE_FILE,
    TOPOLOGY_FILE,
    JobFile,
    Request,
)
from meshwright.engines.seating import hosts_text, nodes_text, racks_of_site, racks_of_slurm, ranks_text
from meshwright.engines.shape import Shape
from meshwright.engines.site import read_site
from meshwright.errors import InputError
from meshwright.files import read_text, refusal, write_whole
from meshwright.plan.plan import plan_bytes, read_plan
from meshwright.record.bad_nodes import read_bad_nodes

MOST_LIST_BYTES = 64 << 20
SUBMITTED_FILE = "job.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What the engine answered: kept, so that the job can be followed again."""

    engine: str
    job: str

    def write(self, folder: Path) -> None:
        """Write it into the job's folder."""
        write_whole(folder / SUBMITTED_FILE, json.dumps(asdict(self)) + "\n")


def read_submitted(folder: Path) -> Submitted | None:
    """The job that was submitted from a folder; None where there is none, or its file is damaged."""
    try:
        values = json.loads(read_text(folder / SUBMITTED_FILE, MOST_LIST_BYTES))
        return Submitted(engine=str(values["engine"]), job=str(values["job"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_job(request: Request, files: Sequence[JobFile], site_text: str) -> None:
    """Write everything that the job needs into its folder, which only its user may enter."""
    folder = request.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chmod(folder, 0o700)
    except OSError as error:
        raise refusal("cannot make the job's folder", folder, error) from None
    write_whole(folder / PLAN_FILE, plan_bytes(request.plan))
    write_whole(folder / SITE_FILE, site_text)
    for file in files:
        if file.is_kept:
            write_whole(folder / file.name, file.text)
    (folder / PLACING_FILE).unlink(missing_ok=True)  # of an earlier start
    _write_secret(folder / SECRET_FILE)


def _write_secret(path: Path) -> None:
    """A new secret for every submission, for the job's user alone."""
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
    except OSError as error:
        raise refusal("cannot write the secret of the job", path, error) from None


def place(folder: Path) -> Placed:
    """Put the ranks of a job on the nodes that it was allocated; write the host file, the rank map and the plan to run.

    The plan is another one where the nodes are not those that it wants.
    """
    plan, site = read_plan(folder / PLAN_FILE), read_site(folder / SITE_FILE)
    allocated = _lines(folder / ALLOCATED_FILE)
    racks = racks_of_site(site.racks) or racks_of_slurm("\n".join(_lines(folder / TOPOLOGY_FILE, is_needed=False)))
    bad = [one.node for one in read_bad_nodes(folder / BAD_FILE)]
    found = placed(plan, allocated, racks, bad)
    shape = Shape.of(found.plan)
    write_whole(folder / HOSTS_FILE, hosts_text(shape, found.seating.hosts))
    write_whole(folder / NODES_FILE, nodes_text(found.seating))
    write_whole(folder / RANKS_FILE, ranks_text(shape, found.seating))
    write_whole(folder / PLACED_FILE, plan_bytes(found.plan))
    write_whole(folder / PLACING_FILE, "\n".join([found.seating.words, *([found.change] if found.change else []), ""]))
    return found


def _lines(path: Path, *, is_needed: bool = True) -> list[str]:
    try:
        return [line.strip() for line in read_text(path, MOST_LIST_BYTES).splitlines() if line.strip()]
    except FileNotFoundError:
        if not is_needed:
            return []
        raise InputError(
            f"{path.name} is missing", where=str(path), fix="this command is for the inside of a job: its script writes the file first"
        ) from None
    except OSError as error:
        raise refusal(f"cannot read {path.name}", path, error) from None
