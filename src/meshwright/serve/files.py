"""The files that the page may open: plain files in run folders inside the runs folder. Links to other places are not followed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from meshwright.errors import InputError
from meshwright.record.header import check_name

RUN_FILES = ("run.json", "steps.jsonl", "plan.json", "events.jsonl")  # a folder with one of these is a run folder, even a damaged one


def run_folder(runs: Path, name: str) -> Path:
    """The folder of the run `name`, directly inside `runs`: a name that leads to another place is an error."""
    check_name(name)
    folder = runs / name
    if not folder.is_dir():
        raise InputError(f"no run is called {name!r}", where=str(runs), fix="choose one from the list")
    if folder.resolve().parent != runs.resolve():
        raise InputError(f"the run {name!r} is a link that leads out of the runs folder", where=str(folder), fix="move the run into it")
    return folder


def run_names(runs: Path) -> dict[str, float]:
    """All run folders, each with the time at which it was last written to, newest first."""
    try:
        found = [(entry.name, touched_s(entry.path)) for entry in os.scandir(runs) if not entry.name.startswith(".")]
    except OSError:
        return {}  # it does not exist yet: the first run creates it
    return {name: written_s for name, written_s in sorted(found, key=lambda one: (-one[1], one[0])) if written_s > 0}


def touched_s(folder: str | Path) -> float:
    """When a run was last written to, in seconds of the system clock; 0 if this is not a run folder."""
    times = [0.0]
    for name in RUN_FILES:
        try:
            times.append(os.stat(f"{folder}/{name}", follow_symlinks=False).st_mtime)
        except (OSError, ValueError):
            continue
    return max(times)


def check_plain(path: Path) -> os.stat_result:
    """The stat result of a plain file; an error for a link, a pipe, a device or a folder, which could lead elsewhere or never end."""
    state = os.stat(path, follow_symlinks=False)
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path.name} is not a plain file", where=str(path), fix="put the file itself there, not a link to it")
    return state


def open_plain(path: Path) -> int:
    """A descriptor of a plain file, which the caller must close; OSError if there is no such file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{path.name} is not a plain file", where=str(path), fix="put the file itself there, not a link to it")
    return descriptor
