"""A user's files: written completely or not at all, read only if they are plain files of a sensible size; pipes are streamed.

A file is first written under another name and then renamed, so that a reader, or a process that is killed, never leaves or sees half of it.
The temporary file is always new, so that nobody can prepare a link in its place.
"""

from __future__ import annotations

import errno
import os
import re
import select
import stat
import sys
from contextlib import suppress
from pathlib import Path

from meshwright.errors import InputError

MOST_BYTES = 1 << 30  # of a description, a plan, a log: a larger file is none of these
MOST_LINES_BYTES = 1 << 34  # of the steps or events of a run
NAME_LETTERS = 60  # of a draft: even four bytes a letter fit into a name
PIPE_WAIT_S = 10.0  # for the first and every further byte of a pipe
DESCRIPTOR = re.compile(r"/(?:dev/(?:(stdin|stdout|stderr)|fd/(\d+))|proc/self/fd/(\d+))")
STANDARD = {"stdin": 0, "stdout": 1, "stderr": 2}
READABLE = "give the path of a file that exists and can be read"
FIXES = {
    errno.ENOENT: "choose a folder that exists",
    errno.ENOTDIR: "choose a folder that exists",
    errno.EISDIR: "give a file's name, not a folder's",
    errno.ENOSPC: "free space on this disk, or choose another one",
    errno.EDQUOT: "free space within this quota, or choose another disk",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EROFS: "this disk cannot be written to: choose another one",
    errno.EACCES: "choose a place that this user may write to",
    errno.EPERM: "choose a place that this user may write to",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EIO: "the disk fails: choose another one",
    errno.EPIPE: "the reader of this pipe has gone: start it again",
}


FORMATS = {  # endings that promise a reader a format
    ".csv", ".doc", ".docx", ".gif", ".gz", ".htm", ".html", ".ipynb", ".jpeg", ".jpg", ".json", ".jsonl", ".md", ".parquet", ".pdf",
    ".png", ".ppt", ".pptx", ".py", ".sh", ".svg", ".toml", ".txt", ".webp", ".xls", ".xlsx", ".xml", ".yaml", ".yml", ".zip", ".zst",
}  # fmt: skip


def check_ending(path: Path | None, what: str, *endings: str) -> None:
    """Raise an error if a file to be written has the ending of another format; no ending, or an unknown one, is allowed."""
    ending = path.suffix.lower() if path else ""
    if path and ending in FORMATS and ending not in endings:
        raise InputError(
            f"{what} is written as {' or '.join(endings)}, not {path.name}", where=str(path), fix=f"name it {path.with_suffix(endings[0])}"
        )


def check_target(path: Path | None, what: str, *endings: str) -> None:
    """The same before long work, after which the file is written: its folder must be there too."""
    check_ending(path, what, *endings)
    if path and not path.absolute().parent.is_dir():
        raise InputError(
            f"cannot write {what}: there is no folder {path.parent}", where=str(path), fix="make the folder, or choose another"
        )


def refusal(what: str, path: Path | str, error: OSError) -> InputError:
    """The error for something that the system refused: what, where, and what would help."""
    reason = error.strerror or str(error)
    return InputError(f"{what}: {reason}", where=str(path), fix=FIXES.get(error.errno or 0, "choose another name"))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file completely or not at all; into a pipe, as a stream."""
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            _stream(path, data)
        else:
            replace_file(path, data)
    except OSError as error:
        raise refusal(f"cannot write {path.name}", path, error) from None


def replace_file(path: Path, data: bytes, draft_name: str = "") -> None:
    """Put `data` in the place of a plain file, in one step; raises OSError.

    `draft_name` is for folders that one process alone writes to: a draft that a kill left there is replaced by the next.
    """
    draft = path.with_name(draft_name or f".{os.getpid()}.{path.name}"[:NAME_LETTERS])
    with suppress(FileNotFoundError):
        os.unlink(draft)  # a link that stands there goes, not what it leads to
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(draft)
        raise


def check_path(path: Path | str) -> None:
    """Raise OSError, as for any other path that cannot be, where no file can have this name: a zero byte or half a character in it."""
    try:
        if b"\0" not in os.fsencode(path):
            return
    except UnicodeEncodeError:
        pass
    raise OSError(errno.EINVAL, "no file can have this name", str(path))


def is_stream(path: Path) -> bool:
    """Whether what is written to `path` goes on to a reader at once: a pipe, an open descriptor, /dev/null. A device raises OSError."""
    if DESCRIPTOR.fullmatch(str(path)):
        return True
    check_path(path)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:
        return True
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISFIFO(status.st_mode)):
        raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
    return stat.S_ISFIFO(status.st_mode)


def _stream(path: Path, data: bytes) -> None:
    """Hand `data` to whoever reads at the other end."""
    number = _descriptor(path)
    if number in (1, 2):  # what was printed before comes before
        (sys.stdout if number == 1 else sys.stderr).flush()
    fd = os.dup(number) if number is not None else os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    with open(fd, "wb") as file:
        file.write(data)


def _descriptor(path: Path) -> int | None:
    """The number of the open descriptor that a path like /dev/stdout or /dev/fd/63 names."""
    found = DESCRIPTOR.fullmatch(str(path))
    if not found:
        return None
    word, *numbers = found.groups()
    return STANDARD[word] if word else int(next(number for number in numbers if number))


def read_bytes(path: Path | str, most_bytes: int = MOST_BYTES) -> bytes:
    """What a plain file or a pipe holds; anything else, and more than `most_bytes`, raises OSError."""
    check_path(path)
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISFIFO(status.st_mode):
            return _read_pipe(fd, path, most_bytes)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device, not a file", str(path))
        if status.st_size > most_bytes:
            raise _too_large(path, status.st_size, most_bytes)
        with open(fd, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(fd)


def read_text(path: Path | str, most_bytes: int = MOST_BYTES, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The same as text, every end of a line as one newline."""
    text = read_bytes(path, most_bytes).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _read_pipe(fd: int, path: Path | str, most_bytes: int) -> bytes:
    """All data from a pipe until its writer closes it; an error if nothing comes for a while."""
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        if not select.select([fd], [], [], PIPE_WAIT_S)[0]:
            raise OSError(errno.ETIMEDOUT, f"nothing came through this pipe for {PIPE_WAIT_S:g} s", str(path))
        part = os.read(fd, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > most_bytes:
            raise _too_large(path, size_bytes, most_bytes)


def _too_large(path: Path | str, size_bytes: int, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it has {size_bytes:,} bytes, more than the {most_bytes:,} that such a file may have", str(path))
