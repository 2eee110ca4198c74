"""Objects below a URL: `s3://BUCKET/KEY` (S3 and compatible stores) or `az://CONTAINER/KEY` (Azure).

An object is written completely or not at all, and `create` makes one only if there is none: this takes the place of the rename of a file.
A request that fails for a passing reason (no connection, 429, 500 to 599, an answer that is cut short) is repeated with growing pauses
until `patience_s` has passed. Credentials and the server's address are those of the environment, as the provider's own tools read them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

from meshwright.errors import InputError, MeshwrightError

T = TypeVar("T")
URL = re.compile(r"(s3|az):/{1,2}([^/]+)(?:/(.*))?")  # one slash: a path has lost the other
PATIENCE_S = 60.0
REQUEST_S, CONNECT_S = 60, 5
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0
PART_BYTES = 8 << 20  # of an upload; S3 takes at most 10,000 parts
MOST_PARTS = 10_000
PARTS_AT_ONCE = 4
MOST_BYTES = 1 << 30  # of an object that is read at once
SHOWN_LETTERS = 200
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role that may use the bucket",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or log in with the account's own tools",
}
NO_CREDENTIALS = re.compile(r"169\.254\.169\.254|redential|UnknownConfigurationKey|Account must be specified", re.IGNORECASE)
NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound")


class StorageError(MeshwrightError):
    """Object storage does not answer, or an object cannot be written or read."""


class Missing(StorageError):
    """There is no such object."""


def is_url(text: str | Path) -> bool:
    """Whether a text, or a path made of it, is the URL of object storage."""
    return bool(re.match(r"[a-z][a-z0-9+.-]+:/", str(text)))


@dataclass(frozen=True, slots=True)
class Remote:
    """An object, or the objects whose keys begin with `key/`, like a folder."""

    root: str  # s3://BUCKET
    key: str = ""
    patience_s: float = PATIENCE_S

    @classmethod
    def at(cls, url: str | Path, patience_s: float = PATIENCE_S) -> Self:
        """The place that a URL names."""
        found = URL.fullmatch(str(url))
        parts = [part for part in (found[3] or "").split("/") if part] if found else []
        if not found or any(part in (".", "..") for part in parts):
            raise InputError(
                f"{str(url)!r} is not a URL of object storage",
                where=str(url),
                fix="write s3://BUCKET/FOLDER or az://CONTAINER/FOLDER; a disk that nodes share (NFS) is a path",
            )
        return cls(f"{found[1]}://{found[2]}", "/".join(parts), patience_s)

    def __truediv__(self, name: str) -> Remote:
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    def waiting(self, patience_s: float) -> Remote:
        """The same place, with another patience for a server that does not answer."""
        return replace(self, patience_s=patience_s)

    def read(self, most_bytes: int = MOST_BYTES) -> bytes:
        """The whole object."""

        def get() -> bytes:
            found = _obstore().get(self._store(), self.key)
            size_bytes = int(found.meta["size"])
            if size_bytes > most_bytes:
                raise StorageError(f"{self.name} has {size_bytes:,} bytes, more than the {most_bytes:,} of such a file", where=str(self))
            data = bytes(found.bytes())
            if len(data) != size_bytes:
                raise OSError(f"{len(data)} of {size_bytes} bytes arrived")
            return data

        return self._tried("read", get)

    def read_range(self, start: int, stop: int) -> memoryview:
        """The bytes from `start` to `stop`; fewer if the object ends before."""

        def get() -> memoryview:
            data = memoryview(_obstore().get_range(self._store(), self.key, start=start, end=stop))
            if len(data) < stop - start and len(data) < self.size_bytes() - start:
                raise OSError(f"{len(data)} of {stop - start} bytes arrived")
            return data

        return self._tried("read", get)

    def size_bytes(self) -> int:
        """The size of the object."""
        return int(self._tried("find", lambda: _obstore().head(self._store(), self.key))["size"])

    def written_s(self) -> float:
        """When the object was written, in seconds of the server's clock."""
        return float(self._tried("find", lambda: _obstore().head(self._store(), self.key))["last_modified"].timestamp())

    def exists(self) -> bool:
        """Whether there is such an object."""
        try:
            self.size_bytes()
        except Missing:
            return False
        return True

    def write(self, data: bytes) -> None:
        """Put `data` in the place of the object, or make it."""
        self._tried("write", lambda: _obstore().put(self._store(), self.key, data, use_multipart=False))

    def create(self, data: bytes) -> bool:
        """Make the object if there is none; return whether it holds `data` now.

        A first request may have worked although its answer was lost. So what is there already is compared.
        """
        try:
            self._tried("write", lambda: _obstore().put(self._store(), self.key, data, mode="create", use_multipart=False))
        except _Exists:
            return self.read() == data
        return True

    def upload(self, parts: Iterable[bytes | memoryview], num_bytes: int) -> None:
        """Write an object of any size from its parts, several at once. It appears when the last part has arrived."""
        part_bytes = max(PART_BYTES, -(-num_bytes // MOST_PARTS))
        options = {"use_multipart": num_bytes > PART_BYTES, "chunk_size": part_bytes, "max_concurrency": PARTS_AT_ONCE}
        self._tried("write", lambda: _obstore().put(self._store(), self.key, iter(parts), **options), again=False)

    def files(self) -> dict[str, int]:
        """The objects in this folder, without folders below it: names and sizes in bytes."""
        return {meta["path"].rpartition("/")[2]: int(meta["size"]) for meta in self._listed()["objects"]}

    def folders(self) -> list[str]:
        """The names of the folders in this one."""
        return sorted(path.rstrip("/").rpartition("/")[2] for path in self._listed()["common_prefixes"])

    def names(self) -> list[str]:
        """The names of both, in one request."""
        listed = self._listed()
        paths = [*listed["common_prefixes"], *(meta["path"] for meta in listed["objects"])]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def _listed(self) -> Any:
        return self._tried("list", lambda: _obstore().list_with_delimiter(self._store(), self.key))

    def remove(self) -> None:
        """Remove the object; no error if there is none."""
        try:
            self._tried("remove", lambda: _obstore().delete(self._store(), self.key))
        except Missing:
            return

    def remove_all(self) -> None:
        """Remove every object below this folder."""
        for key in list(self._below()):
            replace(self, key=key).remove()

    def _below(self) -> Iterator[str]:
        def listed() -> list[str]:
            return [meta["path"] for block in _obstore().list(self._store(), self.key) for meta in block]

        yield from self._tried("list", listed)

    def _store(self) -> Any:
        return _store(self.root, self.patience_s, os.getpid())

    def _tried(self, what: str, call: Callable[[], T], *, again: bool = True) -> T:
        """The result of a request. A passing failure is repeated while there is patience, unless `again` says that it cannot be."""
        until_s, pause_s = time.monotonic() + self.patience_s, FIRST_PAUSE_S
        while True:
            try:
                return call()
            except Exception as error:
                final = self._final(what, error)
                if final or not again or time.monotonic() + pause_s > until_s:
                    raise final or self._silent(what, error) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_PAUSE_S)

    def _final(self, what: str, error: Exception) -> MeshwrightError | None:
        """The error for a request that no repetition helps; None for one that may work the next time."""
        kind, text, scheme = type(error).__name__, str(error), self.root.partition(":")[0]
        if NO_BUCKET.search(text):
            return InputError(f"there is no bucket {self.root}", where=str(self), fix="make it, or correct the URL")
        if isinstance(error, FileNotFoundError):
            return Missing(f"{self.name} does not exist", where=str(self))
        if kind in ("AlreadyExistsError", "PreconditionError"):
            return _Exists(f"{self.name} exists already", where=str(self))
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or isinstance(error, PermissionError):
            fix = f"use credentials that may: {CREDENTIALS[scheme]}"
            return InputError(f"the server does not let this user {what} {self.name}: {_reason(error)}", where=str(self), fix=fix)
        if NO_CREDENTIALS.search(text):
            return InputError(f"no credentials for {self.root}", where=str(self), fix=CREDENTIALS[scheme])
        if isinstance(error, MeshwrightError | MemoryError):
            raise error
        return None

    def _silent(self, what: str, error: Exception) -> StorageError:
        return StorageError(
            f"cannot {what} {self.name or self.root}: the server did not answer as it should for {self.patience_s:g} s: {_reason(error)}",
            where=str(self),
            fix="check that the server runs, and that this machine reaches it",
        )


class _Exists(StorageError):
    """An object that should be new is there already."""


def _reason(error: Exception) -> str:
    """The first line of an error of the library, without the addresses and times in it."""
    first = str(error).partition("\n")[0].rpartition(" - ")[2].strip() or type(error).__name__
    return first[:SHOWN_LETTERS]


def _obstore() -> Any:
    """The library; an error says how to install it."""
    try:
        import obstore
    except ImportError:
        raise InputError("object storage needs the package obstore", where="this Python", fix="pip install 'meshwright[storage]'") from None
    return obstore


def is_used() -> bool:
    """Whether this process, or the one it was forked from, has used object storage."""
    return _store.cache_info().currsize > 0


@cache
def _store(root: str, patience_s: float, process: int) -> Any:
    """The connections to one bucket, shared by all threads of this process; a forked process has its own."""
    _obstore()
    from obstore.store import from_url

    backoff = {"base": 2.0, "init_backoff": timedelta(seconds=FIRST_PAUSE_S), "max_backoff": timedelta(seconds=LAST_PAUSE_S)}
    retries: Any = {"max_retries": 1000, "retry_timeout": timedelta(seconds=patience_s), "backoff": backoff}
    client: Any = {"allow_http": True, "timeout": f"{REQUEST_S}s", "connect_timeout": f"{CONNECT_S}s"}
    return from_url(root, retry_config=retries, client_options=client)
