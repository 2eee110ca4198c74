"""Flat runs of elements and the rectangles of whole tensors that they are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import LLAMA

from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.shards import (
    Cut,
    Shard,
    UsualPeaks,
    cuts_of,
    has_padding,
    measures_of,
    rectangles,
    spans_of,
    square_sum,
    sum_of,
)
from meshwright.train.parallel.tensor import split
from meshwright.train.parallel.timing import HostTimer

law = settings(deadline=None, max_examples=60)


@st.composite
def runs(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """A shape, and the first and last element of a run in it."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    first, last = sorted(draw(st.tuples(*[st.integers(0, math.prod(shape))] * 2)))
    return shape, first, last


@law
@given(runs())
def test_rectangles_cover_a_run_once_and_in_order(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, first, last = run
    tensor = np.arange(math.prod(shape)).reshape(shape)
    covered = []
    for start, size, span in rectangles(shape, first, last):
        box = tensor[tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))]
        assert box.shape == size
        assert span == slice(len(covered), len(covered) + box.size)
        covered += box.flatten().tolist()
    assert covered == list(range(first, last))


@law
@given(runs())
def test_a_run_takes_few_rectangles(run: tuple[tuple[int, ...], int, int]) -> None:
    shape, first, last = run
    assert len(list(rectangles(shape, first, last))) <= 2 * len(shape) - 1


def test_pieces_stand_where_the_cut_says() -> None:
    cut = Cut(name="w", shape=(4, 6), start=(0, 3), local=(4, 3))  # the right half of a tensor
    values = torch.arange(2.0, 9.0)  # elements 2 to 9 of the part
    shard = Shard(values=values, gradient=None, spans=((cut, 2, 9, 0),), decays=True, is_partial=False, copies=1)
    whole = torch.full((4, 6), -1.0)
    for piece in shard.pieces(values, "weights"):
        assert (piece.name, piece.shape) == ("weights/w", (4, 6))
        whole[tuple(slice(a, a + n) for a, n in zip(piece.start, piece.tensor.shape, strict=True))] = piece.tensor
    wanted = torch.full((4, 6), -1.0)
    wanted[0, 5], wanted[1, 3:], wanted[2, 3:] = 2.0, torch.tensor([3.0, 4.0, 5.0]), torch.tensor([6.0, 7.0, 8.0])
    assert torch.equal(whole, wanted)


@pytest.mark.parametrize(
    "vocab_size, tp, held", [(96, 4, [24, 24, 24, 24]), (97, 4, [25, 25, 25, 22]), (5, 4, [2, 2, 1, 0]), (97, 1, [97])]
)
def test_padding_of_a_table_is_no_piece_of_it(vocab_size: int, tp: int, held: list[int]) -> None:
    model = replace(LLAMA, vocab_size=vocab_size)
    first = 0
    for index, num_rows in enumerate(held):
        chunk = Transformer(model, [])
        axis = Axis(
            name="tp", ranks=tuple(range(tp)), index=index, group=None, timer=HostTimer(), marks=Marks(), device=torch.device("cpu")
        )
        split(chunk, axis)
        rows = chunk.embed.weight.shape[0]
        cuts = cuts_of(chunk, axis, axis, 1)["embed.weight"]
        assert rows == model.vocab_rows(tp) == sum(cut.local[0] for cut in cuts)
        assert has_padding(cuts) == (num_rows < rows)
        spans = tuple(spans_of(cuts, 0, rows * model.hidden, 0))
        shard = Shard(values=torch.zeros(rows * model.hidden), gradient=None, spans=spans, decays=True, is_partial=False, copies=1)
        pieces = list(shard.pieces(shard.values, "weights"))
        assert [(piece.shape, piece.start, tuple(piece.tensor.shape)) for piece in pieces] == (
            [((vocab_size, model.hidden), (first, 0), (num_rows, model.hidden))] if num_rows else []
        )
        first += num_rows
    assert first == vocab_size


def test_copies_and_tied_tables_count_once_towards_the_norm() -> None:
    def shard(**changes: object) -> Shard:
        kept = {"values": torch.ones(3), "gradient": torch.full((3,), 2.0), "spans": (), "decays": True, "is_partial": False, "copies": 1}
        return Shard(**{**kept, **changes})  # type: ignore[arg-type]

    assert float(square_sum([shard()], tp_index=0)) == pytest.approx(12)
    assert float(square_sum([shard(copies=4)], tp_index=0)) == pytest.approx(3)  # three other ranks add the rest
    assert float(square_sum([shard(counted=False), shard(gradient=None)], tp_index=0)) == pytest.approx(0)
    assert float(square_sum([shard(is_partial=True)], tp_index=1)) == pytest.approx(0)  # the first tensor rank has it
    heads = Cut(name="k", shape=(4,), start=(0,), local=(2,), copies=2)
    queries = Cut(name="q", shape=(4,), start=(0,), local=(1,))
    shared = shard(spans=((queries, 0, 1, 0), (heads, 0, 2, 1)))
    assert [float(square_sum([shared], tp_index=i)) for i in range(4)] == pytest.approx([12, 4, 12, 4])  # every other rank is a copy
    assert [part.tolist() for part in shared.copied()] == [[2.0, 2.0]]


def test_a_peak_is_compared_with_the_usual_one_of_its_bucket() -> None:
    peaks = UsualPeaks()
    usual = torch.tensor([1.0, 100.0], dtype=torch.float64)
    assert [float(peaks.highest(usual)) for _ in range(3)] == [1.0] * 3
    assert float(peaks.highest(usual * torch.tensor([16.0, 1.0]))) == pytest.approx(16.0)
    assert float(peaks.highest(usual)) == pytest.approx(1.0)  # one that stands out moves the usual one only a little, and down
    assert math.isnan(float(peaks.highest(usual * math.nan))) and float(peaks.highest(usual)) == pytest.approx(1.0, rel=0.2)


def test_measures_by_hand() -> None:
    squares, total, largest = measures_of(torch.tensor([3.0, -4.0, 0.0, 0.0])).tolist()
    assert (squares, total, largest) == (pytest.approx(25.0), -1.0, 4.0)


@pytest.mark.parametrize("size", [5, 128, 1024, 100_003])
def test_a_sum_of_numbers_with_one_sign_is_exact_to_a_small_part_of_their_norm(size: int) -> None:
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 1e-3 + 1e-3
    assert abs(float(sum_of(numbers)) - float(numbers.double().sum())) < 1e-6 * float(numbers.norm())
