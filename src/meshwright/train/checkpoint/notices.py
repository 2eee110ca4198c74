"""How ranks report the outcome of a save to each other when the disk, which they normally use for that, fails."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist

STORE_TIMEOUT_S = 5.0


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

    def __init__(self, store: dist.Store) -> None:
        own: dist.Store = store.clone()  # type: ignore[attr-defined]  # torch's types leave it out
        self._store = dist.PrefixStore("saves", own)
        self._store.set_timeout(timedelta(seconds=STORE_TIMEOUT_S))

    def post(self, name: str, text: str) -> None:
        """Send a text. If the store does not answer, this is not an error, because the files have the same information."""
        with suppress(RuntimeError):
            self._store.set(name, text)

    def read(self, name: str) -> str | None:
        """The text of that name, if there is one."""
        with suppress(RuntimeError):
            if self._store.check([name]):
                return str(self._store.get(name).decode(errors="replace"))
        return None
