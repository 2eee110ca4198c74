"""How layers are compiled on a GPU: whole, or in pieces around attention and between collectives."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import fields
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from meshwright.layout import Layout
from meshwright.train.kernels.linear import PLAIN, Arithmetic
from meshwright.train.model.attention import Context
from meshwright.train.model.experts import ExpertLayer
from meshwright.train.model.rotary import Rotation
from meshwright.train.model.transformer import MLP, Block, Transformer

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def compiles(layout: Layout, device: torch.device) -> bool:
    """Whether the layers of a rank of this layout are compiled on this device.

    A zero-bubble schedule keeps gradients for later, a side effect which a compiled graph must not have. On a processor, compiling takes
    longer than the small runs that are made there.
    """
    return device.type == "cuda" and not layout.is_zero_bubble


def compile_layers(chunk: Transformer, layout: Layout, *, packed: bool, backend: str = "inductor") -> None:
    """Compile the layers of a chunk. All layers have the same shapes, so one compilation is enough for all.

    Waiting for other ranks is a side effect too. So with context parallelism a layer is compiled in two pieces, before and after attention;
    with tensor parallelism the work between collectives is. Packed documents are as many as a batch happens to have, for which attention
    would be compiled again and again: they too have the two pieces, as have layers with a window or with sinks, whose attention has its own
    backward pass. What experts compute is not compiled: it is a few kernels, and with expert parallelism the number of visits changes from
    step to step. The pieces before it are: attention, and the norm with the router, unless ranks share sequences and add up their loads.

    The compiler recommends TF32 for products in fp32. Runs in fp32 are compared digit by digit, so they keep full precision.
    """
    warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores", category=UserWarning)
    compiled: Compile = partial(torch.compile, fullgraph=True, dynamic=False, backend=backend)
    for block in (*chunk.blocks(), *(layer.block for layer in chunk.predictions())):
        is_whole = layout.cp == 1 and not packed and not block.attention.window and block.attention.sinks is None
        if isinstance(block.mlp, ExpertLayer) and layout.tp > 1:
            block.compiled = BeforeExperts(block, compiled)
        elif isinstance(block.mlp, ExpertLayer):
            block.compiled = AroundExperts(block, compiled, attends=is_whole, scores=layout.cp == 1)
        elif layout.tp > 1:
            block.compiled = BetweenCollectives(block, compiled)
            _compile_arithmetic(block, backend)
        elif not is_whole:
            block.compiled = AroundAttention(block, compiled)
        elif repeats_half(block):
            block.compiled = InHalves(block, compiled)
        else:
            block.compiled = compiled(block.plain)


def repeats_half(block: Block) -> bool:
    """Whether the backward pass computes a layer again up to its last product, which then is no part of a compiled piece.

    Nothing reads the output of that product: what is computed again stops before it. A frozen product needs its input for its adapters
    alone, so that everything is there by then; a product with a weight of its own is compiled with the rest, as it always was.
    """
    return block.recomputes_mlp or (block.recomputes and isinstance(block.mlp, MLP) and block.mlp.down.adapter is not None)


class Half:
    """The second half of a layer, compiled up to its last product."""

    def __init__(self, block: Block, compiled: Compile) -> None:
        assert isinstance(block.mlp, MLP), "experts are not compiled"
        self.mlp, self.activated = block.mlp, compiled(block.activated)

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.mlp.down.add_bias(self.mlp.leave(self.mlp.down.product(self.activated(x))))
        return out


class InHalves:
    """A layer in two compiled pieces: its first half, and the second up to its last product."""

    def __init__(self, block: Block, compiled: Compile) -> None:
        self.block, self.first, self.second = block, compiled(block.attention_half), Half(block, compiled)

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        return self.block.feed(self.second, self.first(x, context, rotation))


class AroundAttention:
    """A layer in two compiled pieces, with attention as it is written between them; in three, if its second half is computed again."""

    def __init__(self, block: Block, compiled: Compile) -> None:
        self.attended = block.attention.attended
        self.before = compiled(block.before_attention)
        if repeats_half(block):
            added, half = compiled(block.added), Half(block, compiled)
            self.after: Callable[[Tensor, Tensor], Tensor] = lambda x, attended: block.feed(half, added(x, attended))
        else:
            self.after = compiled(block.after_attention)

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        query, key, value = self.before(x, rotation)
        out: Tensor = self.after(x, self.attended(query, key, value, context))
        return out


class AroundExperts:
    """A layer with experts in compiled pieces: its first half (in two pieces around attention, if that is not compiled), the norm with the
    router, and shared experts."""

    def __init__(self, block: Block, compiled: Compile, *, attends: bool, scores: bool) -> None:
        assert isinstance(block.mlp, ExpertLayer), "a dense layer has no experts"
        self.block, self.mlp = block, block.mlp
        self.first = compiled(block.attention_half) if attends else self.in_pieces
        self.before, self.added = compiled(block.before_attention), compiled(block.added)
        self.scored = compiled(block.scored) if scores else block.scored
        if isinstance(self.mlp.shared, MLP):
            self.mlp.products = compiled(self.mlp.shared.products)

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        return self.block.feed(self.second, self.first(x, context, rotation))

    def in_pieces(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        """The first half, with attention as it is written."""
        query, key, value = self.before(x, rotation)
        out: Tensor = self.added(x, self.block.attention.attended(query, key, value, context))
        return out

    def second(self, x: Tensor) -> Tensor:
        """The second half."""
        past, rows, scored = self.scored(x)
        out: Tensor = past + self.mlp.visited(rows, scored)
        return out


class BeforeExperts:
    """A layer with experts on tensor ranks: only the heads of its attention are compiled, since its router comes after a collective."""

    def __init__(self, block: Block, compiled: Compile) -> None:
        self.block, self.turned = block, compiled(block.attention.turned)

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        attention = self.block.attention
        past, normed = self.block.attention_norm(x)
        query, key, value = self.turned(attention.projected(normed), rotation)
        half = past + attention.o.add_bias(attention.leave(attention.narrowed(attention.attended(query, key, value, context))))
        return self.block.feed(self.block.fed, half)


class BetweenCollectives:
    """A layer whose work between collectives is compiled: the rotation, and the second product of each half with what is before it.

    The first products are one with the collective before them (`train.parallel.tensor.GatheredProduct`), and a norm is one kernel anyway.
    A layer that is computed again stops before its last product, which nothing reads: so that product is not compiled into a piece there.
    """

    def __init__(self, block: Block, compiled: Compile) -> None:
        assert isinstance(block.mlp, MLP), "a layer with experts is not compiled between its collectives"
        self.block, self.mlp = block, block.mlp
        self.turned, self.narrowed = compiled(block.attention.turned), compiled(block.attention.narrowed)
        self.mlp_narrowed = block.mlp.narrowed if block.recomputes or block.recomputes_mlp else compiled(block.mlp.narrowed)

    def __call__(self, x: Tensor, context: Context, rotation: Rotation | None) -> Tensor:
        block, attention = self.block, self.block.attention
        past, normed = block.attention_norm(x)
        query, key, value = self.turned(attention.projected(normed), rotation)
        attended = attention.attended(query, key, value, context)
        return block.feed(self.fed, past + attention.o.add_bias(attention.leave(self.narrowed(attended))))

    def fed(self, x: Tensor) -> Tensor:
        """The second half of the layer."""
        past, normed = self.block.mlp_norm(x)
        out: Tensor = past + self.mlp.down.add_bias(self.mlp.leave(self.mlp_narrowed(self.mlp.into(normed))))
        return out


def _compile_arithmetic(block: Block, backend: str) -> None:
    """Compile how the products with a collective are computed, where this is more than one kernel."""
    assert isinstance(block.mlp, MLP), "experts have no product with a collective"
    for layer in (*block.attention.gathering(), block.mlp.into):
        if layer.arithmetic is not PLAIN:
            layer.arithmetic = _compiled_arithmetic(layer.arithmetic, backend)


@cache
def _compiled_arithmetic(arithmetic: Arithmetic, backend: str) -> Arithmetic:
    steps = (getattr(arithmetic, step.name) for step in fields(arithmetic))
    return Arithmetic(*(torch.compile(step, fullgraph=True, dynamic=False, backend=backend) for step in steps))
