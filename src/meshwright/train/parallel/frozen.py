"""The frozen weights beside adapters: where they are stored, and how the products of a rank use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from meshwright.describe.workload import Adapters
from meshwright.train.checkpoint import Piece
from meshwright.train.kernels.few_bits import KINDS, FewBits
from meshwright.train.kernels.linear import Linear
from meshwright.train.model.adapters import AdaptedProduct, Dropout, products_of
from meshwright.train.model.transformer import MLP, Transformer, tensors_in
from meshwright.train.parallel.buckets import Numbers, put_in_place
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.shards import Cut, Span, cuts_of, has_padding, spans_of
from meshwright.train.parallel.tensor import GatheredProduct, cut_dim, gathering

ROWS_AT_ONCE = 1024  # of a matrix that are in memory whole while it is put into few bits
PREFIX = "weights"


def connect(chunk: Transformer, adapters: Adapters, dropout: Dropout, axis: Axis, device: torch.device) -> None:
    """Make every product of a chunk (split, and still without storage) use a frozen weight and the pairs beside it."""
    key_copies = chunk.model.key_copies(axis.size)
    for name, (layer, parts) in products_of(chunk).items():
        held = tensors_in(f"{name}.weight", chunk.model, key_copies)
        unit = layer.weight.shape[0] // sum(share for _, share in held)
        sizes = {part: share * unit for part, (_, share) in zip(parts, held, strict=True)}
        gather = gathering(axis) if isinstance(layer.multiply, GatheredProduct) else None
        dim = cut_dim(f"{name}.weight")  # a matrix that is whole on every rank multiplies the rank's part of the sequence
        first_column = axis.index * layer.weight.shape[1] if dim == 1 else 0
        part = (axis.index, axis.size) if dim is None else (0, 1)
        layer.multiply = AdaptedProduct(name, sizes, adapters, dropout, gather, first_column, part, device)
    for block in chunk.blocks():
        if isinstance(block.mlp, MLP) and isinstance(block.mlp.down.multiply, AdaptedProduct):
            block.mlp.down.multiply.is_last = block.recomputes or block.recomputes_mlp


class Frozen:
    """The frozen weights of one chunk, whole on every replica."""

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers, base: str) -> None:
        self.mesh = mesh
        cuts = cuts_of(chunk, mesh.tp, mesh.ep, mesh.layout.etp)
        self.few: list[tuple[FewBits, Sequence[Cut]]] = []
        self.plain: list[tuple[Tensor, list[Span]]] = []
        if base in KINDS:
            for name, (layer, _) in products_of(chunk).items():
                self._reduce(layer, cuts[f"{name}.weight"], base, numbers.compute)
        for name, old in list(chunk.named_parameters()):
            if not old.requires_grad:
                self._store(chunk, old, cuts[name], numbers.compute)

    def _store(self, chunk: Transformer, old: nn.Parameter, cuts: Sequence[Cut], dtype: torch.dtype) -> None:
        make = torch.zeros if has_padding(cuts) else torch.empty
        new = nn.Parameter(make(old.shape, dtype=dtype, device=self.mesh.device), requires_grad=False)
        put_in_place(chunk, old, new)
        self.plain.append((new.data.view(-1), list(spans_of(cuts, 0, new.numel(), 0))))

    def _reduce(self, layer: Linear, cuts: Sequence[Cut], base: str, dtype: torch.dtype) -> None:
        """Keep the weight of a layer in few bits instead."""
        columns = slice(cuts[0].start[1], cuts[0].start[1] + cuts[0].local[1])
        few = KINDS[base](layer.weight.shape[0], columns, dtype, self.mesh.device)
        layer.register_parameter("weight", None)
        layer.few_bits = few
        self.few.append((few, cuts))

    def fill(self, fill: Callable[[Piece], None]) -> None:
        """Load all weights with a function that fills pieces of whole tensors."""
        for flat, spans in self.plain:
            for cut, first, last, offset in spans:
                for piece in cut.rows(first, last, flat[offset : offset + last - first]):
                    fill(Piece(name=f"{PREFIX}/{piece.name}", shape=piece.shape, start=piece.start, tensor=piece.tensor))
        for few, cuts in self.few:
            first = 0
            for cut in cuts:
                for piece in self._whole_rows(cut):
                    fill(piece)
                    few.store(first, piece.tensor)
                    first += len(piece.tensor)

    def _whole_rows(self, cut: Cut) -> Iterator[Piece]:
        """The rows of a whole tensor that a cut has a part of, some at a time, not filled yet."""
        end = cut.start[0] + cut.local[0]
        for row in range(cut.start[0], end, ROWS_AT_ONCE):
            tensor = torch.empty(min(ROWS_AT_ONCE, end - row), cut.shape[1], device=self.mesh.device)
            yield Piece(name=f"{PREFIX}/{cut.name}", shape=cut.shape, start=(row, 0), tensor=tensor)
