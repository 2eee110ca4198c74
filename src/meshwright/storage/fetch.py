"""Copies objects to files of this machine: continued where an earlier copy was cut off, and compared with a digest before they count."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from meshwright.files import refusal
from meshwright.storage.remote import Remote, StorageError

PART_BYTES = 8 << 20
PARTS_AT_ONCE = 8
UNFINISHED = ".part"


def fetch(place: Remote, path: Path, num_bytes: int, sha256: str, report: Callable[[int], None] = lambda num_bytes: None) -> None:
    """Copy an object of a known size and digest to `path`, unless it is there. `report` gets the bytes as they arrive.

    The copy grows under another name, and gets its own once the digest is right; a copy that was cut off goes on where it ended.
    """
    if path.is_file() and path.stat().st_size == num_bytes:
        report(num_bytes)
        return
    draft = path.with_name(path.name + UNFINISHED)
    try:
        if _fetched(place, draft, num_bytes, report) != sha256:
            draft.unlink()
            raise StorageError(
                f"{place.name} is damaged: it does not have the digest that its manifest has", where=str(place), fix="store it again"
            )
        os.replace(draft, path)
    except OSError as error:
        raise refusal(f"cannot copy {place.name}", path, error) from None


def _fetched(place: Remote, draft: Path, num_bytes: int, report: Callable[[int], None]) -> str:
    """Append what is missing to the draft, several parts at once, and return the digest of all of it."""
    digest = hashlib.sha256()
    with open(draft, "ab+") as file:
        file.truncate(min(file.tell(), num_bytes))
        file.seek(0)
        while data := file.read(PART_BYTES):
            digest.update(data)
            report(len(data))
        for part in _parts(place, file.tell(), num_bytes):
            file.write(part)
            digest.update(part)
            report(len(part))
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _parts(place: Remote, first: int, num_bytes: int) -> Iterator[memoryview]:
    """The rest of an object, part by part, in order."""
    starts = range(first, num_bytes, PART_BYTES)
    with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
        for group in range(0, len(starts), PARTS_AT_ONCE):
            yield from pool.map(lambda start: _part(place, start, num_bytes), starts[group : group + PARTS_AT_ONCE])


def _part(place: Remote, start: int, num_bytes: int) -> memoryview:
    stop = min(start + PART_BYTES, num_bytes)
    data = place.read_range(start, stop)
    if len(data) != stop - start:
        raise StorageError(
            f"{place.name} has fewer than the {num_bytes:,} bytes that its manifest has", where=str(place), fix="store it again"
        )
    return data
