"""Small states to save, and ranks as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch

from meshwright.storage import Location
from meshwright.train.checkpoint import Piece, Saved, load, save


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

    def save(self, folder: Location, step: int, value: float, **options: object) -> Saved:
        return save(folder, step, self.pieces(value), {"value": value}, **options)

    def save_by_ranks(self, folder: Location, step: int, value: float, num_ranks: int) -> Location:
        """Save with every rank as a thread; return where it lies."""
        kinds = {"num_ranks": num_ranks, "token": "ab", "number": step, "timeout_s": 20.0}
        parts = [self.pieces(value, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]
        saved = together([lambda r=r: save(folder, step, parts[r], {"value": value}, rank=r, **kinds) for r in range(num_ranks)])
        return saved[0].path

    def value(self, path: Location) -> float:
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
