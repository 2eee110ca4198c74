"""The records of a run in object storage: copied there while the run is written, and back to a machine that does not have them.

`.stored.json` lists every file with the digests that it may have. It is written before the files: with the old and the new digest of each
file that changes. So a copy that is cut off at any point can be checked. Checkpoints are not copied: ranks write them there themselves.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import MOST_LINES_BYTES, read_bytes, refusal, replace_file
from meshwright.record.lock import Held, RunLock
from meshwright.record.run import ASIDE
from meshwright.storage import Missing, Remote, StorageError
from meshwright.storage.lease import BEAT_S, Lease, release_ended

INDEX = ".stored.json"
OWN = ".remote.json"  # on this machine: the writer whose records these are
CHECKPOINTS = "checkpoints"
HEADER = "run.json"
ROUND_S = 2.0  # between two copies
MOST_SHARE = 0.1  # of the time that copying may take
ROUND_PATIENCE_S = 10.0  # of one round, after which the next one tries again
READS = 5  # attempts to read records that change while they are read


@dataclass(frozen=True, slots=True)
class Version:
    """One content of a file."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Version:
        """That of `data`."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(slots=True)
class Copies:
    """The files of a run folder, and what object storage has of each."""

    folder: Path
    place: Remote
    owner: str
    _stored: dict[str, list[Version]] = field(default_factory=dict)  # the contents that each object may have
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # size and time of what was copied last

    def copy(self) -> None:
        """Copy what has changed since the last time; raises StorageError."""
        states = {name: _state(self.folder / name) for name in record_names(self.folder)}
        changed = {name: state for name, state in states.items() if state is not None and self._seen.get(name) != state}
        gone = [name for name in self._stored if states.get(name) is None]
        if not changed and not gone:
            return
        contents = {name: data for name in changed if (data := _content(self.folder / name)) is not None}
        for name, data in contents.items():
            self._stored.setdefault(name, []).append(Version.of(data))
        for name in gone:
            del self._stored[name]
        (self.place / INDEX).write(self._index())
        for name in sorted(contents, key=lambda name: name == HEADER):  # the header says that the run has ended: last
            (self.place / name).write(contents[name])
            self._stored[name] = [Version.of(contents[name])]
            self._seen[name] = changed[name]
        for name in gone:
            (self.place / name).remove()
            self._seen.pop(name, None)

    def missing(self) -> list[str]:
        """The files that object storage does not have as they are now."""
        return [name for name in record_names(self.folder) if self._seen.get(name) != _state(self.folder / name)]

    def _index(self) -> bytes:
        files = {name: [[version.num_bytes, version.sha256] for version in versions] for name, versions in self._stored.items()}
        return json.dumps({"format": 1, "owner": self.owner, "files": files}, sort_keys=True).encode()


def record_names(folder: Path) -> list[str]:
    """The files of a run folder that are copied: not checkpoints, not locks and drafts."""
    if not folder.is_dir():
        return []
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return sorted(name for name in names if name == ASIDE or not (name.startswith((".", f"{CHECKPOINTS}/")) or "/." in name))


def _state(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)
        return status.st_size, status.st_mtime_ns
    return None


def _content(path: Path) -> bytes | None:
    with suppress(OSError):
        return read_bytes(path, MOST_LINES_BYTES)
    return None


class Mirror:
    """Copies the records of a run in the background, and renews the lease of its place.

    A server that does not answer is reported once through `notify`, and again when it answers. Training does not wait for it.
    """

    def __init__(self, folder: Path, place: Remote, lease: Lease, notify: Callable[[str, str], None]) -> None:
        self.lease, self._notify = lease, notify
        self._copies = Copies(folder, place.waiting(ROUND_PATIENCE_S), lease.owner.id)
        self._ended = Event()
        self._trouble = ""
        self._renewed_s = time.monotonic()
        replace_file(folder / OWN, json.dumps({"owner": lease.owner.id}).encode())
        self._thread = Thread(target=self._run, name="mirror", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s = ROUND_S
        while not self._ended.wait(pause_s):
            begun_s = time.monotonic()
            self._round()
            pause_s = max(ROUND_S, (time.monotonic() - begun_s) / MOST_SHARE - ROUND_S)
            pause_s = min(pause_s, BEAT_S)

    def _round(self) -> None:
        """Renew the lease, then copy; report when that begins to fail, and when it works again."""
        try:
            if time.monotonic() - self._renewed_s >= BEAT_S:
                self.lease.renew()
                self._renewed_s = time.monotonic()
            if self.lease.is_lost:
                self._fail("another process has taken over the run: nothing more is stored")
                return
            self._copies.copy()
        except (MeshwrightError, OSError) as error:
            self._fail(error.what if isinstance(error, MeshwrightError) else str(error))
            return
        if self._trouble:
            self._say_back()

    def _say_back(self) -> None:
        self._trouble = ""
        self._notify("storage_back", "object storage answers again, and has all records")

    def _fail(self, why: str) -> None:
        if not self._trouble:
            self._notify("storage_failed", why)
        self._trouble = why

    def close(self) -> list[str]:
        """Copy the rest, and release the lease; return what could not be stored, and why as the last entry."""
        self._ended.set()
        self._thread.join()
        if not self.lease.is_lost:
            with suppress(MeshwrightError, OSError):
                self._copies.copy()
                if self._trouble:
                    self._say_back()
                    self._copies.copy()  # with the event that says so
                self.lease.release()
        missing = self._copies.missing()
        return [*missing, self._trouble] if missing else []


def push(folder: Path, place: Remote) -> list[str]:
    """Copy the records once more after the process that wrote them has ended, and release its lease; return what could not be stored."""
    owner = own_writer(folder)
    if not owner:
        return []
    copies = Copies(folder, place, owner)
    with suppress(Missing):
        if _index_at(place).owner not in (owner, ""):
            return []  # another process has taken over
    try:
        copies.copy()
        release_ended(place, owner)
    except StorageError as error:
        return [*copies.missing(), error.what]
    return []


def own_writer(folder: Path) -> str:
    """The writer whose records a folder of this machine has; empty if they are a copy."""
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(json.loads((folder / OWN).read_bytes())["owner"])
    return ""


@dataclass(frozen=True, slots=True)
class _Index:
    owner: str
    files: Mapping[str, tuple[Version, ...]]


def _index_at(place: Remote) -> _Index:
    """The list of the files in object storage; every name is checked, because it becomes a path."""
    try:
        content: dict[str, Any] = json.loads((place / INDEX).read())
        files = {str(name): tuple(Version(int(size), str(sha)) for size, sha in found) for name, found in content["files"].items()}
        index = _Index(str(content["owner"]), files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(f"the list of the run's files is damaged: {error!r}", where=str(place / INDEX)) from None
    for name in index.files:
        if name.startswith(("/", f"{CHECKPOINTS}/")) or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise StorageError(f"the list of the run's files names {name!r:.80}", where=str(place / INDEX))
    return index


def has_records(place: Remote) -> bool:
    """Whether there is a run at a URL."""
    return INDEX in place.files()  # a list says whether there is such a bucket; a request for one object does not


def pull(place: Remote, folder: Path) -> None:
    """Copy the records of a run to `folder`, each compared with its digest; an error if there is no run.

    If the records in `folder` were written on this machine, and by nobody else since, they are at least as new, and are kept.
    """
    try:
        index = _index_at(place)
    except Missing:
        raise InputError("no run here", where=str(place), fix="give the URL of a run: s3://BUCKET/FOLDER/NAME") from None
    if index.owner == own_writer(folder) != "":
        return
    try:
        with _alone(folder), suppress(Held), RunLock.take(folder):  # held: a process of this machine writes it, and its records are newer
            _replace(folder, _contents(place))
    except OSError as error:
        raise refusal("cannot copy the run's records", folder, error) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process of this machine copy at a time; the others wait for it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.copying", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _replace(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Put these records in the place of those that are there."""
    (folder / OWN).unlink(missing_ok=True)
    for name in record_names(folder):
        if name not in contents:
            (folder / name).unlink()
    for name, data in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _update(folder / name, data)


def _update(path: Path, data: bytes) -> None:
    """Make `data` the content of a file. A file that has only grown keeps its place, so that who follows it need not begin again."""
    before = _content(path)
    if before and data.startswith(before):
        with open(path, "ab") as file:
            file.write(data[len(before) :])
    elif before != data:
        replace_file(path, data)


def _contents(place: Remote) -> dict[str, bytes]:
    """The records at a URL. A run that is being written may change them meanwhile: then they are read again."""
    for attempt in range(READS):
        index, contents, wrong = _index_at(place), {}, ""
        for name, versions in index.files.items():
            with suppress(Missing):
                contents[name] = (place / name).read(MOST_LINES_BYTES)
                if Version.of(contents[name]) not in versions:
                    wrong = name
        if not wrong:
            return contents
        time.sleep(0.2 * (attempt + 1))
    raise StorageError(f"{wrong} is damaged: it has no digest that the run's list of files has", where=str(place / wrong))
