"""First weights are a function of seed and name: pieces of any cut are those of the whole tensor."""

from __future__ import annotations

import math

import pytest
import torch

from meshwright.describe.model import Model
from meshwright.train.checkpoint import Piece
from meshwright.train.model.initial import STD, apart, draw, fill_piece, initial_weights

MODEL = Model(name="m", num_layers=8, hidden=64, ffn_hidden=256, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=512)
CPU = torch.device("cpu")
NAME = "layers.0.mlp.up.weight"


def whole(name: str = NAME, seed: int = 1) -> torch.Tensor:
    return draw(MODEL, name, (256, 64), seed, CPU)


def test_the_same_seed_and_name_draw_the_same_and_others_do_not() -> None:
    assert torch.equal(whole(), whole())
    assert not torch.equal(whole(), whole(seed=2))
    assert not torch.equal(whole(), whole("layers.1.mlp.up.weight"))


@pytest.mark.parametrize(
    "name, std",
    [
        (NAME, STD),
        ("embed.weight", STD),
        ("layers.0.attention.o.weight", STD / math.sqrt(16)),  # what writes into the residual: sixteen times in eight layers
        ("layers.0.mlp.down.weight", STD / math.sqrt(16)),
    ],
)
def test_spreads(name: str, std: float) -> None:
    found = whole(name)
    assert float(found.std()) == pytest.approx(std, rel=0.03) and abs(float(found.mean())) < 4 * std / math.sqrt(found.numel())


def test_norms_begin_at_one_and_biases_at_zero() -> None:
    assert torch.equal(draw(MODEL, "head.norm.weight", (64,), 1, CPU), torch.ones(64))
    assert torch.equal(draw(MODEL, "layers.0.attention.o.bias", (64,), 1, CPU), torch.zeros(64))


def test_pieces_are_cut_from_the_whole() -> None:
    fill = initial_weights(MODEL, 1)
    for start, shape in (((0, 0), (128, 64)), ((128, 0), (128, 64)), ((7, 32), (1, 16))):
        piece = Piece(name=f"weights/{NAME}", shape=(256, 64), start=start, tensor=torch.empty(shape))
        fill(piece)
        assert torch.equal(piece.tensor, whole()[start[0] : start[0] + shape[0], start[1] : start[1] + shape[1]])


def test_a_piece_alone_begins_as_a_models_do() -> None:
    shapes = {"weights/layers.0.mlp.down.weight": (64, 32), "weights/head.norm.weight": (32,), "weights/layers.0.attention.q.bias": (32,)}
    pieces = [Piece(name=name, shape=shape, start=(0,) * len(shape), tensor=torch.full(shape, 9.0)) for name, shape in shapes.items()]
    for piece in pieces:
        fill_piece(piece)
    matrix, norm, bias = (piece.tensor for piece in pieces)
    assert matrix.std().item() == pytest.approx(STD, rel=0.1) and abs(matrix.mean().item()) < 0.01
    assert bool((norm == 1.0).all()) and bool((bias == 0.0).all())


def test_weights_that_keep_tokens_apart_differ_in_the_table_alone() -> None:
    for name in ("embed.weight", "head.weight", NAME):
        plain, parted = (Piece(name=f"weights/{name}", shape=(512, 64), start=(0, 0), tensor=torch.empty(512, 64)) for _ in range(2))
        initial_weights(MODEL, 1)(plain)
        apart(initial_weights(MODEL, 1))(parted)
        wanted = plain.tensor / STD if name == "embed.weight" else plain.tensor
        torch.testing.assert_close(parted.tensor, wanted)
