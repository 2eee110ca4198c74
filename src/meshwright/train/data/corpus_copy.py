"""A corpus in object storage, read through a copy on this machine: made once, checked, and shared by all processes of the machine."""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

from meshwright.errors import InputError
from meshwright.files import refusal, replace_file
from meshwright.storage import Missing, Remote
from meshwright.storage.fetch import fetch
from meshwright.train.data.corpus import MANIFEST, REBUILD, Manifest, read_manifest


def local_corpus(place: Remote, cache: Path, report: Callable[[int, int], None] = lambda done, total: None) -> Path:
    """The folder in `cache` that has the corpus at `place`; `report` gets the bytes that are there, and all.

    The folder is named by the digest of the manifest, so another corpus at the same URL is another folder. Its manifest is written last.
    """
    try:
        content = (place / MANIFEST).read()
    except Missing:
        fix = "give the URL of a folder that `meshwright corpus build` has written, with its manifest"
        raise InputError("no finished corpus here: it has no manifest", where=str(place / MANIFEST), fix=fix) from None
    manifest = _manifest(content, place)
    folder = cache / "corpora" / hashlib.sha256(content).hexdigest()[:24]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process copies, and the others of this machine wait for it
            if not (folder / MANIFEST).is_file():
                _copy(place, folder, manifest, report)
                replace_file(folder / MANIFEST, content)
    except OSError as error:
        raise refusal("cannot copy the corpus", folder, error) from None
    return folder


def _manifest(content: bytes, place: Remote) -> Manifest:
    """The manifest in these bytes; an error names the URL."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / MANIFEST).write_bytes(content)
        try:
            manifest, _ = read_manifest(Path(folder))
        except InputError as error:
            raise InputError(error.what, where=str(place / MANIFEST), fix=error.fix) from None
    for name in manifest.files:
        if "/" in name or name.startswith("."):
            raise InputError(f"the manifest names the file {name!r:.80}", where=str(place / MANIFEST), fix=REBUILD)
    return manifest


def _copy(place: Remote, folder: Path, manifest: Manifest, report: Callable[[int, int], None]) -> None:
    total = sum(record.num_bytes for record in manifest.files.values())
    done = 0

    def arrived(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        report(done, total)

    for name, record in sorted(manifest.files.items()):
        fetch(place / name, folder / name, record.num_bytes, record.sha256, arrived)
