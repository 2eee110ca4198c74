"""Text that every machine has: the sources of Python's standard library, as the corpus of the default run."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from meshwright.errors import InputError
from meshwright.train.data.corpus import VERSION, Corpus
from meshwright.train.data.corpus_build import BuildOptions, Report, build_corpus
from meshwright.train.data.sources import Source, source_of

# Tests, tables and retired packages: long, and different from the rest.
LEFT_OUT = {
    *("__phello__", "__pycache__", "dist-packages", "distutils", "encodings", "ensurepip", "idlelib", "idle_test", "lib-dynload"),
    *("lib2to3", "pydoc_data", "site-packages", "test", "tests", "tkinter", "turtledemo"),
}
MAX_BYTES = 5_000_000  # vocabulary and tokens in a few seconds on one core
MIN_BYTES = 1_000_000  # with less text, the installation is incomplete
VALID_FRACTION = 0.05
BUILD_TIMEOUT_S = 120.0  # how long to wait for another process that builds the same


def standard_library_files(folder: Path | None = None, max_bytes: int = MAX_BYTES) -> list[Source]:
    """Sources of the standard library, sorted by name: those with the smallest hashes of their names, as many as fit into `max_bytes`."""
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    chosen, num_bytes = [], 0
    for name in sorted(_names(root), key=lambda name: hashlib.sha256(name.encode()).digest()):
        size = (root / name).stat().st_size
        if 0 < size <= max_bytes - num_bytes and _is_utf8(root / name):
            chosen.append(name)
            num_bytes += size
    if num_bytes < min(MIN_BYTES, max_bytes // 2):
        what = f"only {num_bytes} bytes of Python sources: the standard library has been stripped"
        raise InputError(what, where=str(root), fix="use a Python with its sources, or build a corpus of your own text")
    return [source_of(root / name, name) for name in sorted(chosen)]


def _names(root: Path) -> Iterator[str]:
    """Python files below `root`, by their path from there; folders left out are not entered."""
    for folder, inside, files in os.walk(root):
        inside[:] = [name for name in inside if name not in LEFT_OUT and not name.startswith("config-")]
        yield from ((Path(folder) / name).relative_to(root).as_posix() for name in files if name.endswith(".py"))


def _is_utf8(path: Path) -> bool:
    try:
        path.read_bytes().decode()
    except UnicodeDecodeError:
        return False
    return True


def default_corpus(
    folder: Path, vocab_size: int, seed: int = 0, report: Report = lambda what, done, total: None, *, max_bytes: int = MAX_BYTES
) -> Corpus:
    """The corpus of the standard library in a folder below `folder`, named by its content; built if it does not exist.

    Processes that ask for it at the same time wait for the one that builds it.
    """
    sources = standard_library_files(max_bytes=max_bytes)
    options = BuildOptions(tokenizer=f"train:{vocab_size}", seed=seed, valid_fraction=VALID_FRACTION)
    out = folder / f"standard-library-{_digest(sources, options)[:12]}"
    return build_corpus(sources, out, options, report, lock_timeout_s=BUILD_TIMEOUT_S)


def _digest(sources: list[Source], options: BuildOptions) -> str:
    digest = hashlib.sha256(f"{VERSION} {options}".encode())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + hashlib.sha256(source.path.read_bytes()).digest())
    return digest.hexdigest()
