"""Checks that a folder is what a command needs (free for a new run, or one with a trained model), before torch is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from meshwright.describe.config_json import CONFIG
from meshwright.errors import InputError
from meshwright.record.header import check_name
from meshwright.record.lock import check_free
from meshwright.record.writer import is_free, is_unstarted

PLAN = "plan.json"
ADAPTER = "adapter_config.json"


def check_folder(runs: Path, name: str, *, resume: bool) -> None:
    """Raise an error unless a new run can be made here, or there is a run to continue. Nothing is changed."""
    folder = runs / check_name(name)
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        what = "is no folder" if not nearest.is_dir() else "cannot be written to"
        raise InputError(f"{nearest.name or nearest} {what}", where=str(folder), fix="choose another place: --runs DIR")
    is_there = folder.is_dir() and not is_free(folder) and not is_unstarted(folder)
    if resume and not is_there:
        raise InputError(f"no run named {name!r}", where=str(runs), fix="name the run to continue: --name NAME --resume")
    if is_there and not resume:
        raise InputError(
            "the run's folder exists and is not empty", where=str(folder), fix="use another name, or continue it with --resume"
        )
    if folder.is_dir():
        check_free(folder)


def check_new_folder(folder: Path) -> None:
    """Raise an error unless `folder` does not exist or is empty."""
    if os.path.lexists(folder) and not (folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir())):
        raise InputError("there is something already", where=str(folder), fix="name a folder that does not exist yet")


def check_trained(folder: Path) -> None:
    """Raise an error unless `folder` is a run folder, a Hugging Face model or an adapter beside one."""
    if any((folder / name).is_file() for name in (PLAN, CONFIG, ADAPTER)):
        return
    nothing = f"this holds neither a run ({PLAN}) nor a Hugging Face model ({CONFIG}) nor an adapter ({ADAPTER})"
    raise InputError(
        nothing if folder.is_dir() else "no such folder",
        where=str(folder),
        fix="give a folder that meshwright train wrote (runs/NAME), or one with config.json, model.safetensors and tokenizer.json",
    )
