"""Files that are safely on the disk before anything relies on them, and errors for a disk that fails.

Every change is one call of `os`, so that a test can stop a save between any two calls.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from meshwright.errors import MeshwrightError
from meshwright.storage import Location

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

MAX_JSON_BYTES = 1 << 30  # enough for the manifest of about 20 TB of state; a larger file is not a manifest

FIXES = {
    errno.ENOSPC: "free space on this disk, or keep fewer checkpoints",
    errno.EDQUOT: "free space within this quota, or keep fewer checkpoints",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: "mount the disk for writing, or save elsewhere",
    errno.EACCES: "give this user the right to write here, or save elsewhere",
    errno.EPERM: "give this user the right to write here, or save elsewhere",
    errno.ENOENT: "check that the disk is still mounted and the folder still exists",
    errno.ESTALE: "check that the disk is still mounted and the folder still exists",
    errno.EIO: "the disk fails: replace it, and save elsewhere",
}


class CheckpointError(MeshwrightError):
    """A checkpoint cannot be written, or is not complete."""


@contextmanager
def explained(what: str, where: Path) -> Iterator[None]:
    """Turn an OSError into an error that says what failed, where, and how to fix it."""
    try:
        yield
    except OSError as error:
        raise refused(what, where, error) from error


def refused(what: str, where: Path, error: OSError) -> CheckpointError:
    """The error for an operation that failed on the disk."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    return CheckpointError(f"{what}: {reason}", where=str(where), fix=FIXES.get(error.errno or 0, "see the disk's own messages"))


PASSING = (errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ESTALE)


def may_pass(error: CheckpointError) -> bool:
    """Whether a failed operation may work on a second try: a read error, or a slow network."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in PASSING


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write every byte: one call of the system may write fewer."""
    view = memoryview(data)
    while len(view):
        num_written = os.write(fd, view)
        if num_written <= 0:
            raise OSError(errno.EIO, "nothing was written to the disk")
        view = view[num_written:]


@contextmanager
def new_file(path: Path) -> Iterator[int]:
    """The descriptor of a new file. When the block ends without an error, the file is on the disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Write the entries of a folder to the disk: without this a new name may be lost in a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def canonical(value: object) -> bytes:
    """The canonical JSON of a value: equal values have equal digests."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def write_json(path: Path, value: object) -> None:
    """Write a file that appears completely or not at all, because readers wait for its name."""
    unfinished = path.with_name(path.name + ".unfinished")
    with suppress(FileNotFoundError):
        os.unlink(unfinished)
    with new_file(unfinished) as fd:
        write_all(fd, canonical(value))
    os.rename(unfinished, path)


def read_json(path: Path) -> Any:
    """The value in a JSON file; duplicate keys, NaN and unreasonable sizes are errors."""
    with regular_file(path) as fd:
        with explained(f"cannot read {path.name}", path):
            size_bytes = os.fstat(fd).st_size
        if size_bytes == 0:
            raise CheckpointError(f"{path.name} is empty", where=str(path))
        if size_bytes > MAX_JSON_BYTES:
            raise CheckpointError(
                f"{path.name} has {size_bytes:,} bytes, more than the {MAX_JSON_BYTES:,} of any manifest", where=str(path)
            )
        with explained(f"cannot read {path.name}", path):
            text = read_at(fd, 0, memoryview(bytearray(size_bytes)))
    return parse_json(bytes(text), path)


def parse_json(text: bytes, path: Location) -> Any:
    """The value of JSON text from the file `path`."""
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is not JSON as written here: {error}", where=str(path)) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key {name!r} occurs twice")
        found[name] = value
    return found


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is not a JSON number")


@contextmanager
def regular_file(path: Path) -> Iterator[int]:
    """The descriptor of an existing plain file, open for reading; a link or a device is refused."""
    with explained(f"cannot open {path.name}", path):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        with explained(f"cannot open {path.name}", path):
            is_plain = stat.S_ISREG(os.fstat(fd).st_mode)
        if not is_plain:
            raise CheckpointError(f"{path.name} is not a plain file", where=str(path))
        yield fd
    finally:
        os.close(fd)


def read_at(fd: int, offset: int, into: memoryview) -> memoryview:
    """Fill `into` from `offset` on; return only the beginning if the file ends before."""
    num_read = 0
    while num_read < len(into):
        got = os.preadv(fd, [into[num_read:]], offset + num_read)
        if got == 0:
            return into[:num_read]
        num_read += got
    return into


def remove_folder(path: Path) -> None:
    """Remove a folder and its content; no error if it does not exist."""
    with suppress(FileNotFoundError):
        shutil.rmtree(path)
