"""A key-value store whose values only the ranks of a job can write and read, if they share a secret.

torch's store lets everyone who reaches its port set, read and delete every key. So control values are sealed: hidden, and bound to their
key and to this start of the job. A value of somebody else is an error that says so. The seal is the synthetic-IV construction (as in
RFC 5297, with HMAC-SHA-256 and SHAKE-256): the tag of key and value is also the nonce, so the same value has the same seal and can be
compared in the store. Deleting a key cannot be prevented, nor writing an old value of the same key again; neither makes a rank do anything
but stop.

Without a secret the same code runs with an empty one: mistakes are found, strangers are not kept out.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from meshwright.errors import InputError, MeshwrightError
from meshwright.files import refusal

TAG_BYTES = 32
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 16, 4096


class Forged(MeshwrightError):
    """A value in the store that no rank of this job has written."""


def proof(secret: bytes, *parts: str | int) -> str:
    """A proof that its writer has the secret; it is valid for these parts in this order only."""
    text = "".join(f"{len(str(part))}:{part}" for part in parts)
    return hmac.new(_key(secret, "proof"), text.encode(), hashlib.sha256).hexdigest()


def is_proven(given: str, secret: bytes, *parts: str | int) -> bool:
    """Whether a proof fits."""
    return hmac.compare_digest(given.encode(), proof(secret, *parts).encode())


def _key(secret: bytes, purpose: str) -> bytes:
    return hmac.new(secret, f"meshwright {purpose}".encode(), hashlib.sha256).digest()


class Seal:
    """Seals values, and opens them again. A seal is bound to the key of its value and to the name of what it belongs to."""

    def __init__(self, secret: bytes, name: str) -> None:
        self._name = name
        self._hiding, self._binding = _key(secret, "hiding"), _key(secret, "binding")

    def sealed(self, key: str, value: str | bytes) -> bytes:
        """A value that only those who have the secret can read, or can have written."""
        plain = value.encode() if isinstance(value, str) else value
        tag = self._tag(key, plain)
        return tag + self._hidden(tag, plain)

    def opened(self, key: str, data: bytes) -> bytes | None:
        """The value; None if it was not sealed for this key by somebody who has the secret."""
        tag, hidden = data[:TAG_BYTES], data[TAG_BYTES:]
        plain = self._hidden(tag, hidden)
        return plain if hmac.compare_digest(tag, self._tag(key, plain)) else None

    def _tag(self, key: str, plain: bytes) -> bytes:
        named = f"{len(self._name)}:{self._name}/{len(key)}:{key}/".encode()
        return hmac.new(self._binding, named + plain, hashlib.sha256).digest()

    def _hidden(self, tag: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._hiding + tag).digest(len(data))
        return bytes(one ^ other for one, other in zip(data, stream, strict=True))


class SealedStore:
    """A store that seals what it is given, and opens what it reads."""

    def __init__(self, store: dist.Store, secret: bytes = b"", name: str = "") -> None:
        self._store, self._secret, self._name = store, secret, name
        self._seal = Seal(secret, name)

    def apart(self, prefix: str, timeout_s: float) -> SealedStore:
        """The same store below a prefix, over a connection of its own: a slow answer never holds up another thread."""
        own: dist.Store = self._store.clone()  # type: ignore[attr-defined]  # torch has it and its types do not
        own.set_timeout(timedelta(seconds=timeout_s))
        return SealedStore(dist.PrefixStore(prefix, own), self._secret, f"{self._name}/{prefix}")

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._store.set(key, self._seal.sealed(key, value))  # type: ignore[arg-type]  # torch's types ask for a text; it takes bytes

    def get(self, key: str) -> bytes:
        """The value of a key; `Forged` if somebody else has written it."""
        found = self._seal.opened(key, bytes(self._store.get(key)))
        if found is None:
            raise Forged(
                "a value in the store of the ranks was written by a process that does not have the secret of the job",
                where=key,
                fix="another user or job reaches the port at which the ranks meet: choose another port, and close the network to others",
            )
        return found

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        """The values of keys; None where somebody else has written it."""
        return [self._seal.opened(key, bytes(value)) for key, value in zip(keys, self._store.multi_get(list(keys)), strict=True)]

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there, whoever has written them."""
        return bool(self._store.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all keys are there; RuntimeError after the time."""
        self._store.wait(list(keys), timeout)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Write `desired` if the key has the value `expected` or, for an empty one, is not there; return what it has then."""
        before = self._seal.sealed(key, expected) if self._store.check([key]) else b""
        found = bytes(self._store.compare_set(key, before, self._seal.sealed(key, desired)))  # type: ignore[arg-type]  # bytes work as well
        return self._seal.opened(key, found) or b""


def read_secret(path: Path) -> bytes:
    """The secret in a file that only its user may read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise refusal("cannot read the secret of the job", path, error) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise InputError("the secret is not in a plain file", where=str(path), fix="give a file with a random text")
        if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o077:
            raise InputError(
                f"others may read or change the secret (mode {stat.S_IMODE(status.st_mode):03o})", where=str(path), fix=f"chmod 600 {path}"
            )
        secret = os.read(fd, MOST_SECRET_BYTES + 1).strip()
    finally:
        os.close(fd)
    if not LEAST_SECRET_BYTES <= len(secret) <= MOST_SECRET_BYTES:
        raise InputError(
            f"the secret has {len(secret)} bytes", where=str(path), fix=f"make one of {LEAST_SECRET_BYTES} or more: openssl rand -hex 32"
        )
    return secret
