"""A folder of checkpoints: their names, the newest whole one, and which are kept.

step-00000120                      whole, by the rename that gave it this name
step-00000120.1                    the same step, saved again: the later one counts
.step-00000120.partial-TOKEN-3     a save that is under way, or was cut off
.trash-step-00000100-NONCE         on its way out

In object storage a folder without a manifest is a save that is under way, or was cut off, or is on its way out (on_storage.py).
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError
from meshwright.storage import Location, Remote
from meshwright.train.checkpoint.durable import CheckpointError, explained, regular_file, remove_folder
from meshwright.train.checkpoint.manifest import MANIFEST, Manifest, read_manifest
from meshwright.train.checkpoint.source import sizes_at

STEP = re.compile(r"step-(\d{8,18})(?:\.(\d{1,9}))?")
PARTIAL = re.compile(r"\.step-(\d{8,18})\.partial-([0-9a-f]+)-(\d{1,18})")
TRASH = ".trash-"
READS = 20  # attempts to read a folder whose checkpoints change while it is read
PARTS_OF_A_SHARD = ("shard-", ".safetensors")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which checkpoints are kept: the last few, and those whose step is a multiple of `every_steps` (0: none of these)."""

    last: int = 3
    every_steps: int = 0

    def __post_init__(self) -> None:
        if self.last < 1 or self.every_steps < 0:
            raise InputError(
                f"cannot keep the last {self.last} checkpoints and every {self.every_steps} steps",
                where="retention",
                fix="keep at least the last one; every_steps is 0 or more",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The newest checkpoint that can be used, if there is one, and the newer ones that cannot, with the reasons."""

    path: Location | None
    step: int | None
    skipped: tuple[tuple[Location, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StepFolder:
    """A folder with the name of a checkpoint; it may be incomplete."""

    step: int
    generation: int
    path: Location


def step_path(folder: Path, step: int) -> Path:
    """A free name for a checkpoint of `step`."""
    generation = 0
    while os.path.lexists(folder / step_name(step, generation)):
        generation += 1
    return folder / step_name(step, generation)


def step_name(step: int, generation: int) -> str:
    """The name of a checkpoint; `generation` counts those of the same step."""
    return f"step-{step:08d}.{generation}" if generation else f"step-{step:08d}"


def partial_path(folder: Path, step: int, token: str, number: int) -> Path:
    """Where the files of a save are collected until it is complete."""
    return folder / f".step-{step:08d}.partial-{token}-{number}"


def names_in(folder: Location) -> list[str]:
    """The names in a folder of checkpoints; none when there is no such folder."""
    if isinstance(folder, Remote):
        return folder.names()
    with explained("cannot list the checkpoints", folder):
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []


def step_folders(folder: Location) -> list[StepFolder]:
    """Everything named like a checkpoint, newest first."""
    matches = [(name, STEP.fullmatch(name)) for name in names_in(folder) if is_begun(folder / name)]
    found = [StepFolder(step=int(m[1]), generation=int(m[2] or 0), path=folder / name) for name, m in matches if m]
    return sorted(found, reverse=True)


def is_begun(path: Location) -> bool:
    """Whether a name stands for a checkpoint: in object storage it does from the moment there is a manifest."""
    return not isinstance(path, Remote) or (STEP.fullmatch(path.name) is not None and (path / MANIFEST).exists())


def check_whole(path: Location) -> Manifest:
    """The manifest of a checkpoint that has all its files at their sizes, and no shard of another one. Contents are not read."""
    if not isinstance(path, Remote) and (path.is_symlink() or not path.is_dir()):
        raise CheckpointError(f"{path.name} is not a folder", where=str(path))
    manifest = read_manifest(path)
    named = STEP.fullmatch(path.name)
    if named and int(named[1]) != manifest.step:
        raise CheckpointError(f"{path.name} holds step {manifest.step}", where=str(path))
    sizes = sizes_at(path, [file.name for file in manifest.files])
    for file in manifest.files:
        if sizes[file.name] != file.size_bytes:
            raise CheckpointError(
                f"{file.name} has {sizes[file.name]:,} bytes, and was saved with {file.size_bytes:,}", where=str(path / file.name)
            )
    listed = {file.name for file in manifest.files}
    for name in names_in(path):
        if name not in listed and (name.startswith(PARTS_OF_A_SHARD[0]) or name.endswith(PARTS_OF_A_SHARD[1])):
            raise CheckpointError(f"{name} is not part of this checkpoint", where=str(path / name))
    return manifest


def newest_passing(folder: Location, passes: Callable[[Location], object]) -> Found:
    """The newest checkpoint for which `passes` raises no CheckpointError, and why newer ones were skipped.

    A running process may remove a checkpoint while it is read. Then there is a newer one, and the folder is read again.
    """
    for _ in range(READS):
        found, is_settled = _passing(folder, passes)
        if is_settled:
            break
    return found


def _passing(folder: Location, passes: Callable[[Location], object]) -> tuple[Found, bool]:
    """The same with one reading of the folder, and whether nothing that was found has been removed meanwhile."""
    skipped: list[tuple[Location, str]] = []
    gone = False
    for candidate in step_folders(folder):
        try:
            passes(candidate.path)
        except CheckpointError as error:
            if _is_there(candidate.path):
                skipped.append((candidate.path, error.what))
            else:
                gone = True
            continue
        return Found(path=candidate.path, step=candidate.step, skipped=(*_unfinished(folder, candidate.step), *skipped)), True
    return Found(path=None, step=None, skipped=(*_unfinished(folder, 0), *skipped)), not gone


def _is_there(path: Location) -> bool:
    return (path / MANIFEST).exists() if isinstance(path, Remote) else os.path.lexists(path)


def _unfinished(folder: Location, step: int) -> list[tuple[Location, str]]:
    """The saves from `step` on that were never finished."""
    pattern = STEP if isinstance(folder, Remote) else PARTIAL
    matches = [(name, pattern.fullmatch(name)) for name in names_in(folder)]
    if isinstance(folder, Remote):
        matches = [(name, m) for name, m in matches if m and not is_begun(folder / name)]
    return [(folder / name, "the save was not finished") for name, m in matches if m and int(m[1]) >= step]


def newest(folder: Location) -> Found:
    """The newest complete checkpoint by manifest, names and sizes; hashes are checked when it is loaded."""
    return newest_passing(folder, check_whole)


def clean(folder: Path, token: str, number: int) -> list[str]:
    """Remove what earlier saves left behind, and return the names. Saves of this run from `number` on are kept."""
    removed = []
    for name in names_in(folder):
        partial = PARTIAL.fullmatch(name)
        if name.startswith(TRASH) or (partial and (partial[2] != token or int(partial[3]) < number)):
            with explained(f"cannot remove {name}", folder / name):
                remove_folder(folder / name)
            removed.append(name)
    return removed


def prune(folder: Location, keep: Keep, after: Location) -> list[str]:
    """Remove complete checkpoints older than `after` that `keep` does not keep, and return their names.

    A damaged one is neither counted nor removed, because it may still be useful. One that is being read is removed next time.
    """
    removed: list[str] = []
    kept_steps: list[int] = []
    folders = step_folders(folder)
    limit = next(entry for entry in folders if entry.path.name == after.name)
    for candidate in (entry for entry in folders if entry <= limit):
        try:
            check_whole(candidate.path)
        except CheckpointError:
            continue
        replaced = candidate.step in kept_steps
        on_schedule = keep.every_steps and candidate.step % keep.every_steps == 0
        if not replaced and (len(kept_steps) < keep.last or on_schedule):
            kept_steps.append(candidate.step)
        elif _discard(candidate.path):
            removed.append(candidate.path.name)
    return removed


def _discard(path: Location) -> bool:
    """Remove a checkpoint unless a process reads it. It is renamed first, so that an incomplete one is never found.

    In object storage its manifest goes first. A process that reads it is not noticed there; it gets an error, never a wrong value.
    """
    if isinstance(path, Remote):
        (path / MANIFEST).remove()
        path.remove_all()
        return True
    trash = path.with_name(f"{TRASH}{path.name}-{secrets.token_hex(4)}")
    with explained(f"cannot remove {path.name}", path):
        fd = os.open(path / MANIFEST, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _is_read(fd):
                return False
            os.rename(path, trash)
        finally:
            os.close(fd)
        remove_folder(trash)
    return True


def _is_read(fd: int) -> bool:
    """Whether a process reads the checkpoint of this manifest. If not, none can begin until `fd` is closed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # a disk without locks: a reader gets an error, never a wrong value
    return False


@contextmanager
def being_read(path: Location) -> Iterator[None]:
    """Keep a checkpoint on a disk from being pruned, by this run or another, while the block runs."""
    if isinstance(path, Remote):
        yield
        return
    with regular_file(path / MANIFEST) as fd:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(fd, fcntl.LOCK_SH)
        yield
