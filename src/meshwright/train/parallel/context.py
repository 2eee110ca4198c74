"""Context parallelism: each rank holds a part of every sequence, and attention also uses the keys and values of the other ranks.

A sequence is divided into twice as many pieces as ranks. Rank `i` holds piece `i` from the front and piece `i` from the end, so that causal
attention is the same work for all ranks (zig-zag). A rank gets keys and values by an all-gather, or by a ring that passes them on while
attention runs. With all-to-all, it gets all tokens for a part of the heads instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.model.transformer import Attention, Context, Transformer, attend, visible
from meshwright.train.parallel.collectives import Axis, Exchange, Gather

Attend = Callable[[Tensor, Tensor, Tensor, Context], Tensor]
TOKENS, HEADS = 1, 2  # dimensions of [B, T, N, D]


def positions_of(seq_len: int, num_ranks: int, index: int) -> Tensor:
    """Positions that rank `index` holds: a piece from the front and the corresponding piece from the end."""
    pieces = torch.arange(seq_len).chunk(2 * num_ranks) if num_ranks > 1 else (torch.arange(seq_len),)
    return torch.cat((pieces[index], pieces[2 * num_ranks - 1 - index])) if num_ranks > 1 else pieces[0]


def split(chunk: Transformer, axis: Axis, kind: str, seq_len: int) -> None:
    """Use the axis in the attention of every layer of `chunk`."""
    if axis.size == 1:
        return
    everyones = torch.cat([positions_of(seq_len, axis.size, i) for i in range(axis.size)])
    kinds: dict[str, Callable[[Axis, Tensor], Attend]] = {"ring": _Ring, "all-gather": _Gathered, "all-to-all": _Switched}
    for module in chunk.modules():
        if isinstance(module, Attention):
            module.attend = kinds[kind](axis, everyones.to(axis.device))


class _Cut:
    """What all kinds share: the axis, and the positions of the tokens of all ranks, rank after rank."""

    def __init__(self, axis: Axis, everyones: Tensor) -> None:
        self.axis = axis
        self.everyones = everyones


class _Gathered(_Cut):
    """All keys and values on every rank, for its own queries."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        both = Gather.apply(torch.stack((key, value)), self.axis, TOKENS + 1)
        mask = visible(context.positions, context.documents, self.everyones, context.everyones_documents)
        q, k, v = (x.transpose(1, 2) for x in (query, both[0], both[1]))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2)


class _Switched(_Cut):
    """All tokens of a part of the heads on every rank (DeepSpeed-Ulysses, arXiv:2309.14509)."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        order = torch.argsort(self.everyones)
        whole = replace(context, positions=self.everyones[order], documents=None)
        if context.documents is not None:
            assert context.everyones_documents is not None, "a batch brings its own documents and everyone's, or none"
            whole = replace(whole, documents=context.everyones_documents[:, order])
        q, k, v = (self._to_heads(x)[:, order] for x in (query, key, value))
        return self._to_tokens(attend(q, k, v, whole)[:, torch.argsort(order)])

    def _to_heads(self, x: Tensor) -> Tensor:
        """[B, T, N, D] -> [B, T x ranks, N / ranks, D]."""
        parts = x.unflatten(HEADS, (self.axis.size, -1)).movedim(HEADS, 0).contiguous()
        received: Tensor = Exchange.apply(parts, self.axis)
        return received.movedim(0, TOKENS).flatten(TOKENS, TOKENS + 1)

    def _to_tokens(self, x: Tensor) -> Tensor:
        """The inverse of `_to_heads`."""
        parts = x.unflatten(TOKENS, (self.axis.size, -1)).movedim(TOKENS, 0).contiguous()
        received: Tensor = Exchange.apply(parts, self.axis)
        return received.movedim(0, HEADS).flatten(HEADS, HEADS + 1)


class _Ring(_Cut):
    """Keys and values are passed from rank to rank while attention to the present ones is computed (Liu et al. 2023, arXiv:2310.01889)."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context) -> Tensor:
        out: Tensor = _RingAttention.apply(query, key, value, self._masks(context), self.axis)
        return out

    def _masks(self, context: Context) -> list[Tensor]:
        """Which keys of each rank the queries of this rank may attend to."""
        theirs = self.everyones.chunk(self.axis.size)
        documents = context.everyones_documents
        of_rank = [None] * self.axis.size if documents is None else documents.chunk(self.axis.size, dim=1)
        return [visible(context.positions, context.documents, where, which) for where, which in zip(theirs, of_rank, strict=True)]


class _Turn:
    """Tensors that are being sent to the next rank of the ring and received from the previous one."""

    def __init__(self, axis: Axis, held: Tensor) -> None:
        self.axis, self.held = axis, held
        self.coming = torch.empty_like(held)
        after, before = axis.ranks[(axis.index + 1) % axis.size], axis.ranks[axis.index - 1]
        sends = [dist.P2POp(dist.isend, held, after, axis.group), dist.P2POp(dist.irecv, self.coming, before, axis.group)]
        self.works = dist.batch_isend_irecv(sends)

    def wait(self) -> Tensor:
        """The tensors from the previous rank, once they have arrived and the sent ones are through."""
        for work in self.works:
            self.axis.wait(work, "ring")
        return self.coming


def block_scores(query: Tensor, key: Tensor, seen: Tensor, scale: float) -> Tensor:
    """Scaled scores with minus infinity where a key is hidden; heads before tokens, in fp32."""
    return (query @ key.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))


class _RingAttention(torch.autograd.Function):
    """Attention over the keys of all ranks, block by block, with a running maximum; [B, T, N, D].

    The arithmetic is written out in fp32, because the fused kernels do not give the log-sum-exp that joins blocks under a document mask.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, masks: list[Tensor], axis: Axis) -> Tensor:
        groups, scale = query.shape[HEADS] // key.shape[HEADS], query.shape[-1] ** -0.5
        q = _grouped(query, groups)
        held = torch.stack((key, value))
        out = torch.zeros_like(q)
        largest = q.new_full(q.shape[:-1], float("-inf"))
        total = torch.zeros_like(largest)
        for turn in range(axis.size):
            moving = _Turn(axis, held) if turn < axis.size - 1 else None
            k, v = (_heads_first(x) for x in held)
            scores = block_scores(q, k, masks[(axis.index - turn) % axis.size][:, :, None], scale)
            out, largest, total = _join(scores, v, out, largest, total)
            held = moving.wait() if moving else held
        out = out / total[..., None]
        ctx.save_for_backward(query, key, value, out, largest + total.log())
        ctx.masks, ctx.axis, ctx.groups, ctx.scale = masks, axis, groups, scale
        return _ungrouped(out, query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        query, key, value, out, log_sum = ctx.saved_tensors
        axis = ctx.axis
        q, d_out = _grouped(query, ctx.groups), _grouped(gradient, ctx.groups)
        weighted = (d_out * out).sum(dim=-1, keepdim=True)
        held, d_query = torch.stack((key, value)), torch.zeros_like(q)
        d_own: Tensor | None = None  # gradients of this rank's own keys and values
        carried: _Turn | None = None  # gradients of other ranks' keys and values, on their way back
        for turn in range(axis.size):
            moving = _Turn(axis, held) if turn < axis.size - 1 else None
            k, v = (_heads_first(x) for x in held)
            mask = ctx.masks[(axis.index - turn) % axis.size][:, :, None]
            weights = (block_scores(q, k, mask, ctx.scale) - log_sum[..., None]).exp()
            d_scores = weights * (d_out @ v.transpose(-1, -2) - weighted) * ctx.scale
            d_query += d_scores @ k
            d_held = torch.stack((_tokens_first(d_scores.transpose(-1, -2) @ q), _tokens_first(weights.transpose(-1, -2) @ d_out)))
            held = moving.wait() if moving else held
            if turn == 0:
                d_own = d_held
                continue
            # Gradients follow their keys around the ring, one step behind, and reach their rank with the last step.
            d_held = d_held if carried is None else d_held + carried.wait()
            carried = _Turn(axis, d_held.to(key.dtype))
        assert d_own is not None and carried is not None, "a ring has two ranks or more"
        d_key, d_value = (d_own + carried.wait()).to(key.dtype)
        return _ungrouped(d_query, query.dtype), d_key, d_value, None, None


def _join(scores: Tensor, value: Tensor, out: Tensor, largest: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The output, maximum and sum so far, updated with one more block of keys."""
    above = torch.maximum(largest, scores.amax(dim=-1))
    finite = above.clamp_min(torch.finfo(above.dtype).min)  # rows without any visible key stay at zero instead of NaN
    kept, weights = (largest - finite).exp(), (scores - finite[..., None]).exp()
    return out * kept[..., None] + weights @ value, above, total * kept + weights.sum(dim=-1)


def _grouped(x: Tensor, groups: int) -> Tensor:
    """[B, T, N, D] -> [B, N / groups, groups, T, D] in fp32: queries next to the key-value head that they share."""
    return torch.unflatten(x, HEADS, (-1, groups)).permute(0, 2, 3, 1, 4).float()


def _ungrouped(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.permute(0, 3, 1, 2, 4).flatten(HEADS, HEADS + 1).to(dtype)


def _heads_first(x: Tensor) -> Tensor:
    """[B, T, N, D] -> [B, N, 1, T, D] in fp32."""
    return x.transpose(1, 2)[:, :, None].float()


def _tokens_first(x: Tensor) -> Tensor:
    """Gradients of keys or values summed over the queries that share a head: [B, N, groups, T, D] -> [B, T, N, D]."""
    return x.sum(dim=2).transpose(1, 2)
