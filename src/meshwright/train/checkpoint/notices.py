"""How ranks report the outcome of a save to each other when the disk, which they normally use for that, fails."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from meshwright.errors import MeshwrightError

STORE_TIMEOUT_S = 5.0


class Store(Protocol):
    """A key-value store of the job; `apart` gives the same below a prefix, over a connection of its own."""

    def apart(self, prefix: str, timeout_s: float) -> Store:
        """The same store below a prefix."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """The value of a key."""

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""


class Notices(Protocol):
    """Short texts by name that every rank of a save can read."""

    def post(self, name: str, text: str) -> None:
        """Send a text to the other ranks, if possible."""

    def read(self, name: str) -> str | None:
        """The text that a rank has sent; None if there is none, or if this cannot be known."""


class NoNotices:
    """For ranks that share only the disk."""

    def post(self, name: str, text: str) -> None:
        """Does nothing: no rank would read it."""

    def read(self, name: str) -> str | None:
        """None: nothing was written."""
        return None


class StoreNotices:
    """Texts in the key-value store of the job, over a separate connection, so that the thread that saves never delays training."""

    def __init__(self, store: Store) -> None:
        self._store = store.apart("saves", STORE_TIMEOUT_S)

    def post(self, name: str, text: str) -> None:
        """Send a text. If the store does not answer, this is not an error, because the files have the same information."""
        with suppress(RuntimeError):
            self._store.set(name, text)

    def read(self, name: str) -> str | None:
        """The text of that name, if there is one."""
        with suppress(RuntimeError, MeshwrightError):  # what others have written is not a notice
            if self._store.check([name]):
                return str(self._store.get(name).decode(errors="replace"))
        return None
