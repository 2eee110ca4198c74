"""First weights, drawn tensor by tensor from the seed and the name of the tensor, so that every layout starts with the same model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from meshwright.describe.model import Model
from meshwright.train.checkpoint import Piece

STD = 0.02
TABLE = "embed.weight"
ZEROS = ("bias", "sinks")  # tensors that begin with zeros; weights of norms begin with ones
WRITERS = ("attention.o.weight", "mlp.down.weight", "mlp.experts.down.weight", "mlp.shared.down.weight")  # into the residual


def initial_weights(model: Model, seed: int) -> Callable[[Piece], None]:
    """A function that fills pieces.

    Matrices are normal with a standard deviation of 0.02; those that write into the residual have a smaller one, divided by the square root
    of their number. A tensor is drawn as a whole and then cut, on the device of the piece. The last tensor is kept, because its pieces are
    asked for one after another.
    """
    kept: dict[str, Tensor] = {}

    def fill(piece: Piece) -> None:
        name = piece.name.partition("/")[2]
        if name not in kept:
            kept.clear()
            kept[name] = draw(model, name, piece.shape, seed, piece.tensor.device)
        spans = tuple(slice(a, a + n) for a, n in zip(piece.start, piece.tensor.shape, strict=True))
        piece.tensor.copy_(kept[name][spans])

    return fill


def apart(fill: Callable[[Piece], None]) -> Callable[[Piece], None]:
    """The same weights for a step that is only timed: the table of tokens has a standard deviation of 1.

    With 0.02 attention makes tokens alike from layer to layer, and then a router that is not trained sends all of them to the same experts.
    In training, balance losses or biases keep loads even.
    """

    def fill_and_part(piece: Piece) -> None:
        fill(piece)
        if piece.name.partition("/")[2] == TABLE:
            piece.tensor.div_(STD)

    return fill_and_part


def draw(model: Model, name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """The whole tensor `name` at the start, in fp32."""
    if name.endswith(ZEROS):
        return torch.zeros(shape, device=device)
    if len(shape) == 1:
        return torch.ones(shape, device=device)
    if name.endswith((".lora_a", ".lora_b")):
        return draw_adapter(name, shape, seed, device)
    std = STD / math.sqrt(2 * model.num_layers) if name.endswith(WRITERS) else STD
    return torch.normal(0.0, std, shape, generator=_generator(seed, name, device), device=device)


def draw_adapter(name: str, shape: tuple[int, ...], seed: int, device: torch.device) -> Tensor:
    """A half of a low-rank pair at the start: A uniform within one over the root of its width, B zero, as in PEFT."""
    if name.endswith(".lora_b"):
        return torch.zeros(shape, device=device)
    return (2 * torch.rand(shape, generator=_generator(seed, name, device), device=device) - 1) / math.sqrt(shape[1])


def _generator(seed: int, name: str, device: torch.device) -> torch.Generator:
    number = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little") >> 1
    return torch.Generator(device=device).manual_seed(number)


def fill_piece(piece: Piece) -> None:
    """Fill a piece as a model begins, without drawing the whole tensor: matrices normal, norms one; the same layout gives other weights."""
    if piece.name.endswith(ZEROS):
        piece.tensor.zero_()
    elif len(piece.shape) > 1:
        piece.tensor.normal_(0.0, STD)
    else:
        piece.tensor.fill_(1.0)
