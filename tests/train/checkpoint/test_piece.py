"""Pieces cover each element once, or the error names those that do not."""

from __future__ import annotations

import pytest
import torch

from meshwright.errors import InputError
from meshwright.train.checkpoint import CheckpointError, Piece
from meshwright.train.checkpoint.piece import Box, check_tiling


def box(start: tuple[int, ...], shape: tuple[int, ...]) -> Box:
    return Box(start=start, shape=shape)


def test_overlap_is_what_both_hold() -> None:
    assert box((0, 2), (4, 4)).overlap(box((2, 0), (4, 3))) == box((2, 2), (2, 1))
    assert box((0,), (4,)).overlap(box((4,), (4,))) is None
    assert box((), ()).overlap(box((), ())) == box((), ())


@pytest.mark.parametrize(
    "shape, boxes",
    [
        ((4, 6), [box((0, 0), (2, 6)), box((2, 0), (2, 1)), box((2, 1), (2, 5))]),
        ((4,), [box((0,), (4,)), box((4,), (0,))]),
        ((), [box((), ())]),
        ((0, 3), []),
    ],
)
def test_an_exact_cover_passes(shape: tuple[int, ...], boxes: list[Box]) -> None:
    check_tiling("w", shape, boxes, "here")


@pytest.mark.parametrize(
    "shape, boxes, message",
    [
        ((4, 6), [box((0, 0), (4, 5))], "4 of 24 elements of 'w' are in no piece"),
        ((4,), [box((0,), (3,)), box((2,), (2,))], r"overlap: \[0:3\] and \[2:4\]"),
        ((4,), [box((0,), (2,)), box((0,), (2,))], "overlap"),  # as many elements as the whole, yet a gap
        ((4,), [box((2,), (3,))], "outside"),
        ((4,), [box((0, 0), (4, 1))], "outside"),
        ((), [box((), ()), box((), ())], "overlap"),
        ((4,), [], "4 of 4 elements"),
    ],
)
def test_anything_else_is_named(shape: tuple[int, ...], boxes: list[Box], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        check_tiling("w", shape, boxes, "here")


def test_a_piece_must_lie_in_its_tensor() -> None:
    with pytest.raises(InputError, match=r"shape \(2,\) that begins at \(3,\) is not inside a tensor of shape \(4,\)"):
        Piece(name="w", shape=(4,), start=(3,), tensor=torch.zeros(2))
