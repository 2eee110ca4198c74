"""Reading a checkpoint where it lies: files of a disk, or objects of object storage, with the same errors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from meshwright.storage import Location, Missing, Remote
from meshwright.train.checkpoint.durable import MAX_JSON_BYTES, CheckpointError, explained, parse_json, read_at, read_json, regular_file


class Source(Protocol):
    """The bytes of one file."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""

    def read_at(self, offset: int, into: memoryview) -> memoryview:
        """Fill `into` from `offset` on; return only the beginning if the file ends before."""


class _File:
    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path

    @property
    def size_bytes(self) -> int:
        with explained(f"cannot read {self._path.name}", self._path):
            return os.fstat(self._fd).st_size

    def read_at(self, offset: int, into: memoryview) -> memoryview:
        with explained(f"cannot read {self._path.name}", self._path):
            return read_at(self._fd, offset, into)


class _Object:
    def __init__(self, remote: Remote, size_bytes: int) -> None:
        self._remote, self.size_bytes = remote, size_bytes

    def read_at(self, offset: int, into: memoryview) -> memoryview:
        with there(self._remote):
            data = self._remote.read_range(offset, offset + len(into))
        into[: len(data)] = data
        return into[: len(data)]


@contextmanager
def opened(location: Location) -> Iterator[Source]:
    """One file, open for reading; a link or a device is refused."""
    if isinstance(location, Remote):
        with there(location):
            size_bytes = location.size_bytes()
        yield _Object(location, size_bytes)
        return
    with regular_file(location) as fd:
        yield _File(fd, location)


@contextmanager
def there(remote: Remote) -> Iterator[None]:
    """A missing object is damage of this checkpoint. A server that does not answer says nothing about it, and is another error."""
    try:
        yield
    except Missing as error:
        raise CheckpointError(f"cannot open {remote.name}: {error.what}", where=str(remote)) from error


def json_at(location: Location) -> Any:
    """The value in a JSON file."""
    if not isinstance(location, Remote):
        return read_json(location)
    with there(location):
        text = location.read(MAX_JSON_BYTES)
    if not text:
        raise CheckpointError(f"{location.name} is empty", where=str(location))
    return parse_json(text, location)


def sizes_at(folder: Location, names: list[str]) -> dict[str, int]:
    """The sizes of these files in bytes; one that is missing is an error."""
    if isinstance(folder, Remote):
        found = folder.files()  # one request for all
        missing = next((name for name in names if name not in found), None)
        if missing is not None:
            raise CheckpointError(f"cannot open {missing}: there is no such object", where=str(folder / missing))
        return {name: found[name] for name in names}
    sizes = {}
    for name in names:
        with opened(folder / name) as source:
            sizes[name] = source.size_bytes
    return sizes
