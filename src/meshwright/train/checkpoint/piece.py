"""A rectangular piece of a whole tensor, as one rank holds it, and the check that pieces cover each element once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch

from meshwright.errors import InputError
from meshwright.train.checkpoint.durable import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """The position of a piece in its tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(first + length for first, length in zip(self.start, self.shape, strict=True))

    def inside(self, shape: tuple[int, ...]) -> bool:
        """Whether the box lies within a tensor of `shape`."""
        return len(self.start) == len(self.shape) == len(shape) and all(
            first >= 0 and length >= 0 and first + length <= whole
            for first, length, whole in zip(self.start, self.shape, shape, strict=True)
        )

    def overlap(self, other: Box) -> Box | None:
        """The box that both boxes share, or None if they share no element."""
        start = tuple(map(max, self.start, other.start))
        shape = tuple(map(lambda a, b, first: min(a, b) - first, self.stop, other.stop, start))
        return Box(start=start, shape=shape) if all(length > 0 for length in shape) else None

    def __str__(self) -> str:
        if len(self.start) != len(self.shape):  # of a damaged manifest: the error is about to be reported
            return f"of shape {list(self.shape)} at {list(self.start)}"
        return "[" + ", ".join(f"{first}:{last}" for first, last in zip(self.start, self.stop, strict=True)) + "]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A rectangular piece of one whole tensor that this rank holds. To save a replicated piece, only one rank passes it."""

    name: str  # "weights/layers.0.attention.q.weight", "adam_mean/..."
    shape: tuple[int, ...]  # of the whole tensor
    start: tuple[int, ...]  # where this piece begins in it
    tensor: torch.Tensor  # its values, on any device, contiguous or not

    def __post_init__(self) -> None:
        if not self.box.inside(self.shape):
            raise InputError(
                f"a piece of shape {tuple(self.tensor.shape)} that begins at {self.start} is not inside a tensor of shape {self.shape}",
                where=f"tensor {self.name!r}",
                fix="give start and shape in elements of the whole tensor",
            )

    @property
    def box(self) -> Box:
        return Box(start=tuple(self.start), shape=tuple(self.tensor.shape))


def check_tiling(name: str, shape: tuple[int, ...], boxes: Sequence[Box], where: str) -> None:
    """Raise an error unless the boxes cover each element of a tensor exactly once; the error names the boxes."""
    for box in boxes:
        if not box.inside(shape):
            raise CheckpointError(f"the piece {box} of {name!r} lies outside of its shape {list(shape)}", where=where)
    pair = _overlapping([box for box in boxes if box.num_elements])
    if pair:
        raise CheckpointError(
            f"two pieces of {name!r} overlap: {pair[0]} and {pair[1]}", where=where, fix="let one rank of a set of replicas pass a piece"
        )
    num_missing = prod(shape) - sum(box.num_elements for box in boxes)
    if num_missing:
        raise CheckpointError(f"{num_missing:,} of {prod(shape):,} elements of {name!r} are in no piece", where=where)


def _overlapping(boxes: list[Box]) -> tuple[Box, Box] | None:
    """Two boxes that share an element. A sweep along the first dimension compares only those that are open at once."""
    if not boxes or not boxes[0].shape:
        return (boxes[0], boxes[1]) if len(boxes) > 1 else None
    still_open: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.start):
        still_open = [other for other in still_open if other.stop[0] > box.start[0]]
        for other in still_open:
            if box.overlap(other):
                return other, box
        still_open.append(box)
    return None
