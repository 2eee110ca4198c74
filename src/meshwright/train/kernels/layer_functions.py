"""The operations of a layer between its products, with one-pass backwards on a GPU that has kernels for them.

Forwards are plain operations: a compiler turns each into one pass. On a processor the backwards are plain operations too.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Whether this torch can use the kernels; each tensor says whether it is on a GPU. A call to CUDA here would break ranks forked later.
HAS_KERNELS = torch.backends.cuda.is_built() and find_spec("triton") is not None
if HAS_KERNELS:
    from meshwright.train.kernels import layer_kernels  # noqa: F401 - registers its operators

SWISH = 1.702  # gpt-oss multiplies the argument of its sigmoid by this


class Made(NamedTuple):
    """A tensor, and the tensors from which it can be computed again, so that a product need not keep it for its backward."""

    value: Tensor
    how: str  # "norm" from (x, scale, weight), "gate" from (gate_up,)
    sources: tuple[Tensor, ...]


def value_of(x: Tensor | Made) -> Tensor:
    """The tensor itself."""
    return x.value if isinstance(x, Made) else x


def gated(gate_up: Tensor) -> Tensor:
    """SwiGLU: silu(gate) * up, with gate and up side by side in the last dimension."""
    if HAS_KERNELS and gate_up.is_cuda:
        out: Tensor = _Gated.apply(gate_up)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (gate_up,) = ctx.saved_tensors
        d_gate_up: Tensor = torch.ops.meshwright.gate_back(gate_up, gradient.contiguous())
        return d_gate_up


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads rotated by their position (RoPE): dimension `i` pairs with `i + D/2`, as in Hugging Face's checkpoints; [B, T, N, D]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


def rotate_pairs(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """The same where dimension `2i` pairs with `2i + 1`, as in DeepSeek's checkpoints."""
    first, second = x.unflatten(-1, (-1, 2)).unbind(dim=-1)
    cosine, sine = cosine.chunk(2, dim=-1)[0], sine.chunk(2, dim=-1)[0]
    return torch.stack((first * cosine - second * sine, second * cosine + first * sine), dim=-1).flatten(-2)


def split_heads(heads: Tensor, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from the heads of one projection, [B, T, heads, D]."""
    query, key, value = heads.split([heads.shape[-2] - 2 * num_keys, num_keys, num_keys], dim=-2)
    return query, key, value


def turned_heads(heads: Tensor, num_keys: int, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries and keys rotated by their position, and values; cosine and sine are [T, 1, D]."""
    if HAS_KERNELS and heads.is_cuda:
        query, key, value = _TurnedHeads.apply(heads, num_keys, cosine, sine)
        return query, key, value
    query, key, value = split_heads(heads, num_keys)
    return rotate(query, cosine, sine), rotate(key, cosine, sine), value


class _TurnedHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, num_keys: int, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(cosine, sine)
        query, key, value = split_heads(heads, num_keys)
        return rotate(query, cosine, sine), rotate(key, cosine, sine), value.clone()

    @staticmethod
    def backward(ctx: Any, d_query: Tensor, d_key: Tensor, d_value: Tensor) -> tuple[Tensor, None, None, None]:
        parts = (gradient.contiguous() for gradient in (d_query, d_key, d_value))
        return torch.ops.meshwright.heads_back(*parts, *ctx.saved_tensors), None, None, None


def past_and_normed(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """`x`, and its root-mean-square norm; one function, because one pass computes and adds the gradients of both."""
    if HAS_KERNELS and x.is_cuda:
        past, normed, _ = _PastAndNormed.apply(x, weight, epsilon)
        return past, normed
    return x, F.rms_norm(x, weight.shape, weight, epsilon)


def past_and_remade(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Made]:
    """The same on a GPU, with the tensors from which the norm can be computed again."""
    past, normed, scale = _PastAndNormed.apply(x, weight, epsilon)
    return past, Made(normed, "norm", (x.detach(), scale, weight.detach()))


class _PastAndNormed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
        normed, scale = torch.ops.aten._fused_rms_norm(x, list(weight.shape), weight, epsilon)
        ctx.save_for_backward(x, weight, scale)
        ctx.mark_non_differentiable(scale)
        return x.view_as(x), normed, scale

    @staticmethod
    def backward(ctx: Any, d_past: Tensor, d_normed: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor, None]:
        x, weight, scale = ctx.saved_tensors
        d_x, partial = torch.ops.meshwright.norm_back(d_normed.contiguous(), d_past.contiguous(), x, weight, scale)
        return d_x, partial.sum(dim=0).to(weight.dtype), None
