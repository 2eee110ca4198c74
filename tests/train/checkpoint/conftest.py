"""Small states to save, ranks as threads, and a disk that refuses at the k-th call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what other processes run too

from states import States, together

CHANGES = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir", "close")  # every way in which a save changes the disk


@contextmanager
def watched(before: Callable[[int, str, tuple], None]) -> Iterator[list[str]]:
    """Call `before(k, name, arguments)` ahead of the k-th call that changes the disk; yields the names of the calls so far."""
    real = {name: getattr(os, name) for name in CHANGES}
    calls: list[str] = []

    def wrap(name: str) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            calls.append(name)
            before(len(calls), name, arguments)
            return real[name](*arguments, **options)

        return call

    for name in CHANGES:
        setattr(os, name, wrap(name))
    try:
        yield calls
    finally:
        for name, function in real.items():
            setattr(os, name, function)


@pytest.fixture
def states() -> States:
    return States()


@pytest.fixture(name="together")
def together_fixture() -> Callable[[Sequence[Callable[[], object]]], list]:
    return together


@pytest.fixture(name="watched")
def watched_fixture() -> Callable[..., object]:
    return watched


@pytest.fixture
def flip() -> Callable[[Path, int], None]:
    """Flips the lowest bit of one byte of a file, counted from the end when negative."""

    def flip_bit(path: Path, index: int) -> None:
        content = bytearray(path.read_bytes())
        content[index] ^= 1
        path.write_bytes(content)

    return flip_bit
