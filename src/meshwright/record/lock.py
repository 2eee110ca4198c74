"""Only one process at a time can write a run folder: it holds a lock that the system releases when the process ends for any reason."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from meshwright.files import refusal
from meshwright.storage.lease import Held as Held

LOCK = ".lock"
LOOK_S = 0.05  # between two attempts
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)  # errors of a disk without locks: then the lock cannot be checked


class RunLock:
    """The right to write a run folder, held until `release` or until the process ends. The file says who holds it."""

    def __init__(self, fd: int) -> None:
        self._fd: int | None = fd

    @classmethod
    def take(cls, folder: Path, waits_s: float = 0.0) -> Self:
        """Take the lock of the run in `folder`, which is created if missing; an error if another process holds it for so long."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise refusal("cannot lock the run's folder", folder, error) from None
        try:
            _lock(fd, folder, waits_s)
        except BaseException:
            os.close(fd)
            raise
        with suppress(OSError):  # a full disk: the lock is held without a name in it
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return cls(fd)

    def release(self) -> None:
        """Let others write the folder."""
        if self._fd is not None:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def _lock(fd: int, folder: Path, waits_s: float) -> None:
    until_s = time.monotonic() + waits_s
    try:
        while not _is_locked(fd):
            if time.monotonic() >= until_s:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            time.sleep(LOOK_S)
    except BlockingIOError:
        holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "another process"
        raise Held(
            f"this run is being written by {holder}",
            where=str(folder),
            fix="wait until it has ended, or stop it: `kill` with that number lets it save and end",
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise refusal("cannot lock the run's folder", folder, error) from None


def _is_locked(fd: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def is_held(folder: Path) -> bool:
    """Whether a process writes the run in `folder` now."""
    try:
        check_free(folder)
    except Held:
        return True
    return False


def check_free(folder: Path) -> None:
    """Raise an error if a process writes the run in `folder` now."""
    if (folder / LOCK).exists():
        RunLock.take(folder).release()
