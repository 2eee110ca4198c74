"""Small states to save, ranks as threads, and a disk that refuses at the k-th call."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from meshwright.train.checkpoint import Piece, Saved, load, save

CHANGES = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir", "close")  # every way in which a save changes the disk


class States:
    """Makes states of a few tensors, saves them, and reads them back."""

    shapes: ClassVar = {"weights/a": (6, 4), "weights/b": (5,), "adam_mean/a": (6, 4), "counter": ()}

    def pieces(self, value: float, *, rank: int = 0, num_ranks: int = 1) -> list[Piece]:
        """This rank's rows of every tensor, all filled with `value`; the number is rank 0's."""
        found = []
        for name, shape in self.shapes.items():
            first, last = (rank * shape[0] // num_ranks, (rank + 1) * shape[0] // num_ranks) if shape else (0, 0)
            if shape or rank == 0:
                local = torch.full((last - first, *shape[1:]) if shape else (), value)
                found.append(Piece(name=name, shape=shape, start=(first, *[0] * (len(shape) - 1)) if shape else (), tensor=local))
        return found

    def save(self, folder: Path, step: int, value: float, **options: object) -> Saved:
        return save(folder, step, self.pieces(value), {"value": value}, **options)

    def save_by_ranks(self, folder: Path, step: int, value: float, num_ranks: int) -> Path:
        """Save with every rank as a thread; return where it lies."""
        kinds = {"num_ranks": num_ranks, "token": "ab", "number": step, "timeout_s": 20.0}
        parts = [self.pieces(value, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        saved = together([lambda r=r: save(folder, step, parts[r], {"value": value}, rank=r, **kinds) for r in range(num_ranks)])
        return saved[0].path

    def value(self, path: Path) -> float:
        """The one value that fills every tensor of a checkpoint and stands in its scalars: a mix of two saves has none."""
        wanted = self.pieces(float("nan"))
        manifest = load(path, wanted, names=set(self.shapes))
        values = {float(value) for piece in wanted for value in piece.tensor.reshape(-1)} | {manifest.scalars["value"]}
        assert len(values) == 1, f"{path} is a mix: {values}"
        return values.pop()


def together(bodies: Sequence[Callable[[], object]]) -> list:
    """Run each body in a thread of its own; return what they returned, or raise what the first failed with."""
    results: list = [None] * len(bodies)

    def run(number: int) -> None:
        try:
            results[number] = bodies[number]()
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


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
