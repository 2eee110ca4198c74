"""The product of a frozen matrix with the products of its low-rank pairs: `x W^T + scale low B^T`, where `low` is `x A^T`.

Pairs of matrices that multiply the same input are one: the rows of all A one after another, and B with a block for each. So their outputs
are added in place by a single product, and their gradients take one pass over the gradient each. A weight in few bits is made for each
product and never kept. The functions are operators of torch: a compiler would keep what they make, and copy what they add to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meshwright.train.kernels.few_bits import Held


def adapted(x: Tensor, held: Held, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """The product with a frozen matrix and with pairs, `a` [ranks, in] and `b` [out, ranks]."""
    out: Tensor = _forward(x, *held, a, b, scale)[0]
    return out


def added(x: Tensor, held: Held, low: Tensor | None, b: Tensor, scale: float) -> Tensor:
    """The same with the input times A as it was made elsewhere; None: the product with the matrix alone.

    Its backward needs nothing that is as long as the input is wide: what computes a layer again may stop before this product.
    """
    out: Tensor = _forward_added(x, *held, low, b, scale)
    return out


def _product(x: Tensor, held: Held) -> Tensor:
    return x @ held.weight(x.shape[-1], x.dtype).T


@torch.library.custom_op("meshwright::adapted", mutates_args=())
def _forward(
    x: Tensor, codes: Tensor, row_scales: Tensor | None, block_scales: Tensor | None, first_column: int, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """The product, and the input times A."""
    rows = x.flatten(0, -2)
    out, low = _product(rows, Held(codes, row_scales, block_scales, first_column)), rows @ a.T
    return out.addmm_(low, b.T, alpha=scale).view(*x.shape[:-1], out.shape[-1]), low


@_forward.register_fake
def _(
    x: Tensor, codes: Tensor, row_scales: Tensor | None, block_scales: Tensor | None, first_column: int, a: Tensor, b: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:-1], b.shape[0]), x.new_empty(x.shape[:-1].numel(), a.shape[0])


@torch.library.custom_op("meshwright::adapted_back", mutates_args=())
def _backward(
    gradient: Tensor,
    x: Tensor,
    low: Tensor,
    codes: Tensor,
    row_scales: Tensor | None,
    block_scales: Tensor | None,
    first_column: int,
    a: Tensor,
    b: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the input, of A and of B."""
    rows = gradient.flatten(0, -2)
    d_low = (rows @ b).mul_(scale)
    d_a, d_b = d_low.T @ x.flatten(0, -2), (rows.T @ low).mul_(scale)
    d_x = rows @ Held(codes, row_scales, block_scales, first_column).weight(x.shape[-1], x.dtype)
    return d_x.addmm_(d_low, a).view(x.shape), d_a, d_b


@_backward.register_fake
def _(
    gradient: Tensor,
    x: Tensor,
    low: Tensor,
    codes: Tensor,
    row_scales: Tensor | None,
    block_scales: Tensor | None,
    first_column: int,
    a: Tensor,
    b: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), a.new_empty(a.shape), b.new_empty(b.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, codes, row_scales, block_scales, first_column, a, b, scale = inputs
    ctx.save_for_backward(x, output[1], codes, row_scales, block_scales, a, b)
    ctx.first_column, ctx.scale = first_column, scale
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    x, low, codes, row_scales, block_scales, a, b = ctx.saved_tensors
    d_x, d_a, d_b = _backward(gradient, x, low, codes, row_scales, block_scales, ctx.first_column, a, b, ctx.scale)
    return d_x, None, None, None, None, d_a, d_b, None


_forward.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("meshwright::added", mutates_args=())
def _forward_added(
    x: Tensor,
    codes: Tensor,
    row_scales: Tensor | None,
    block_scales: Tensor | None,
    first_column: int,
    low: Tensor | None,
    b: Tensor,
    scale: float,
) -> Tensor:
    """The product, with what pairs add."""
    out = _product(x.flatten(0, -2), Held(codes, row_scales, block_scales, first_column))
    if low is not None:
        out.addmm_(low.flatten(0, -2), b.T, alpha=scale)
    return out.view(*x.shape[:-1], out.shape[-1])


@_forward_added.register_fake
def _(
    x: Tensor,
    codes: Tensor,
    row_scales: Tensor | None,
    block_scales: Tensor | None,
    first_column: int,
    low: Tensor | None,
    b: Tensor,
    scale: float,
) -> Tensor:
    return x.new_empty(*x.shape[:-1], b.shape[0])


@torch.library.custom_op("meshwright::product_back", mutates_args=())
def _product_back(
    gradient: Tensor, codes: Tensor, row_scales: Tensor | None, block_scales: Tensor | None, first_column: int, width: int
) -> Tensor:
    """The gradient of the input of the frozen matrix, which is `width` wide."""
    weight = Held(codes, row_scales, block_scales, first_column).weight(width, gradient.dtype)
    return (gradient.flatten(0, -2) @ weight).view(*gradient.shape[:-1], width)


@_product_back.register_fake
def _(gradient: Tensor, codes: Tensor, row_scales: Tensor | None, block_scales: Tensor | None, first_column: int, width: int) -> Tensor:
    return gradient.new_empty(*gradient.shape[:-1], width)


def _keep_added(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *held, low, b, scale = inputs
    # Not as saved tensors: these are small or kept anyway, and what computes a layer again is to end before this product.
    ctx.held, ctx.low, ctx.b, ctx.scale, ctx.width = held, low, b, scale, x.shape[-1]


def _gradients_added(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    d_x = _product_back(gradient, *ctx.held, ctx.width)
    if ctx.low is None:
        return d_x, None, None, None, None, None, None, None
    d_low = gradient @ ctx.b * ctx.scale
    d_b = gradient.flatten(0, -2).T @ ctx.low.flatten(0, -2) * ctx.scale
    return d_x, None, None, None, None, d_low, d_b, None


_forward_added.register_autograd(_gradients_added, setup_context=_keep_added)
