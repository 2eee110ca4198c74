"""Context parallelism: each rank holds a part of every sequence, and attention also uses the keys and values of the other ranks.

A sequence is divided into twice as many pieces as ranks. Rank `i` holds piece `i` from the front and piece `i` from the end, so that causal
attention is the same work for all ranks (zig-zag). A rank gets keys and values by an all-gather, or by a ring that passes them on while
attention runs. With all-to-all, it gets all tokens for a part of the heads instead.

In zig-zag order a rank sees the keys of a block (those of one rank, or gathered ones) either all, or not at all, or causally if they are
its own. So each block is one call of a fast kernel, and blocks are joined in fp32 by their log-sum-exps. A packed document that is cut over
ranks becomes a run of queries on one rank and runs of keys on others; the kernels then attend run by run.

Of a layer with a window, a rank's two pieces see only the nearest pieces before them: each pair of pieces is a band. Sinks are joined last,
as one more key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from meshwright.train.kernels.attention_parts import kernel_for, part, part_back
from meshwright.train.kernels.banded import Band, Documents, banded, banded_back
from meshwright.train.kernels.runs import Runs, runs_between, runs_of
from meshwright.train.kernels.sinks import sink_gradients, with_sinks
from meshwright.train.model.attention import Attend, Attention, Context, Reach, attend
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.collectives import Axis, Exchange, Gather

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


@dataclass(frozen=True, slots=True)
class Block:
    """Queries of a rank, and keys that they all see; causally, if the keys are the rank's own; in bands, if the layer has a window."""

    queries: slice  # of the rank's tokens
    keys: slice  # of the tokens of another rank, or of gathered ones
    causal: bool = False
    bands: tuple[tuple[slice, slice, Band], ...] | None = None  # pieces of neighbouring tokens: queries, keys, which of them they see


def ring_blocks(num_tokens: int, num_ranks: int, index: int) -> list[Block]:
    """What rank `index` sees of the keys of each rank, by rank; each holds `num_tokens`.

    Of an earlier rank, the front piece is before both of its own and the other after both. Of a later one, both are between its own.
    """
    every, half = slice(0, num_tokens), num_tokens // 2
    earlier, own, later = Block(every, slice(0, half)), Block(every, every, causal=True), Block(slice(half, num_tokens), every)
    return [earlier if rank < index else own if rank == index else later for rank in range(num_ranks)]


def gathered_blocks(num_tokens: int, num_ranks: int, index: int) -> list[Block]:
    """What rank `index` sees of its own keys, and what either of its pieces sees of `other_positions`."""
    every, half = slice(0, num_tokens), num_tokens // 2
    front, back = slice(0, index * half), slice(0, (2 * num_ranks - 2 - index) * half)
    return [Block(every, every, causal=True), Block(slice(0, half), front), Block(slice(half, num_tokens), back)]


def windowed_blocks(kind: str, seq_len: int, num_ranks: int, index: int, window: int) -> list[Block]:
    """The same blocks, by `kind`, for a layer with a window. Of gathered keys both pieces see those of other ranks in one block."""
    mine = positions_of(seq_len, num_ranks, index)
    if kind == "ring":
        theirs = [positions_of(seq_len, num_ranks, rank) for rank in range(num_ranks)]
    else:
        theirs = [mine, other_positions(seq_len, num_ranks, index)]
    blocks = [
        _banded_block(mine, keys, seq_len // (2 * num_ranks), window, is_own=keys is mine or torch.equal(keys, mine)) for keys in theirs
    ]
    return blocks if kind == "ring" else [*blocks, Block(slice(0, 0), slice(0, 0))]


def _banded_block(queries: Tensor, keys: Tensor, piece: int, window: int, *, is_own: bool) -> Block:
    """A block of pieces of `piece` neighbouring tokens, with the pairs of which a query sees a key."""
    bands = []
    for first in range(0, len(queries), piece):
        for start in range(0, len(keys), piece):
            shift = int(queries[first]) - int(keys[start])
            if -piece < shift < window + piece - 1:
                bands.append((slice(first, first + piece), slice(start, start + piece), Band(window, shift)))
    return Block(slice(0, len(queries)), slice(0, len(keys) if bands else 0), causal=is_own, bands=tuple(bands))


def other_positions(seq_len: int, num_ranks: int, index: int) -> Tensor:
    """Positions before the last piece of rank `index` that other ranks hold, in order: first those before its first piece."""
    pieces = torch.arange(seq_len).chunk(2 * num_ranks)
    return torch.cat([pieces[i] for i in range(2 * num_ranks - 1 - index) if i != index])


def runs_for(kind: str, documents: NDArray[np.integer], num_ranks: int, index: int) -> tuple[Runs | None, ...]:
    """Runs of documents [B, S] for each block that rank `index` attends to; for one rank, and for an all-to-all, of whole sequences."""
    if num_ranks == 1 or kind == "all-to-all":
        return (runs_of(documents),)
    seq_len = documents.shape[1]
    mine = documents[:, positions_of(seq_len, num_ranks, index).numpy()]
    if kind == "ring":
        theirs = [documents[:, positions_of(seq_len, num_ranks, rank).numpy()] for rank in range(num_ranks)]
        blocks = ring_blocks(mine.shape[1], num_ranks, index)
    else:
        others = documents[:, other_positions(seq_len, num_ranks, index).numpy()]
        theirs, blocks = [mine, others, others], gathered_blocks(mine.shape[1], num_ranks, index)
    return tuple(_runs_in(block, mine, keys) for block, keys in zip(blocks, theirs, strict=True))


def _runs_in(block: Block, queries: NDArray[np.integer], keys: NDArray[np.integer]) -> Runs | None:
    if block.causal:
        return runs_of(queries)
    if block.keys.stop == 0:
        return None
    runs = runs_between(queries[:, block.queries], keys[:, block.keys])
    return None if runs.is_hidden else runs


class _Cut:
    """What all kinds share: the axis, and the positions of the tokens of all ranks, rank after rank."""

    kind = ""

    def __init__(self, axis: Axis, everyones: Tensor) -> None:
        self.axis = axis
        self.everyones = everyones

    def plan(self, query: Tensor, context: Context, reach: Reach) -> Plan:
        """The blocks of keys that this rank attends to in a layer."""
        num_tokens, num_ranks, index = query.shape[TOKENS], self.axis.size, self.axis.index
        window = reach.within(num_tokens * num_ranks)
        if window:
            return Plan(self._windowed(window), self._documents(context))
        blocks = (ring_blocks if self.kind == "ring" else gathered_blocks)(num_tokens, num_ranks, index)
        return Plan(blocks, runs=context.runs)

    @cache  # noqa: B019 - as long-lived as the model
    def _windowed(self, window: int) -> list[Block]:
        return windowed_blocks(self.kind, len(self.everyones), self.axis.size, self.axis.index, window)

    def _documents(self, context: Context) -> Sequence[Documents] | None:
        """Documents of this rank's queries and of the keys of each block."""
        if context.documents is None or context.everyones_documents is None:
            return None
        mine, everyones = context.documents, context.everyones_documents
        if self.kind == "ring":
            return [(mine, theirs) for theirs in everyones.chunk(self.axis.size, dim=1)]
        where = torch.argsort(self.everyones)
        others = other_positions(len(self.everyones), self.axis.size, self.axis.index).to(where.device)
        return [(mine, mine), (mine, everyones[:, where[others]]), (mine, mine)]


class _Gathered(_Cut):
    """All keys and values on every rank, for its own queries."""

    kind = "all-gather"

    def __init__(self, axis: Axis, everyones: Tensor) -> None:
        super().__init__(axis, everyones)
        where = torch.argsort(everyones.cpu())  # of each position among the gathered keys
        self.others = where[other_positions(len(everyones), axis.size, axis.index)].to(axis.device)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context, reach: Reach) -> Tensor:
        both = Gather.apply(torch.stack((key, value)), self.axis, TOKENS + 1)
        plan = self.plan(query, context, reach)
        out: Tensor = _GatheredAttention.apply(query, both, reach.sinks, self.others, self.axis.index, plan)
        return out


class _Switched(_Cut):
    """All tokens of a part of the heads on every rank (DeepSpeed-Ulysses, arXiv:2309.14509)."""

    kind = "all-to-all"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context, reach: Reach) -> Tensor:
        order = torch.argsort(self.everyones)
        whole = replace(context, positions=self.everyones[order], documents=None)
        if context.documents is not None:
            assert context.everyones_documents is not None, "a batch brings its own documents and everyone's, or none"
            whole = replace(whole, documents=context.everyones_documents[:, order])
        q, k, v = (self._to_heads(x)[:, order] for x in (query, key, value))
        if reach.sinks is not None:
            reach = replace(reach, sinks=reach.sinks.chunk(self.axis.size)[self.axis.index])
        return self._to_tokens(attend(q, k, v, whole, reach)[:, torch.argsort(order)])

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

    kind = "ring"

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, context: Context, reach: Reach) -> Tensor:
        out: Tensor = _RingAttention.apply(query, key, value, reach.sinks, self.plan(query, context, reach), self.axis)
        return out


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


class Plan:
    """Blocks of keys that a rank attends to, with the runs of each where documents are packed, or the documents of blocks in bands."""

    def __init__(
        self, blocks: Sequence[Block], documents: Sequence[Documents] | None = None, *, runs: Sequence[Runs | None] | None = None
    ) -> None:
        self.blocks, self.documents, self.packed = blocks, documents, runs is not None
        self.runs: Sequence[Runs | None] = [None] * len(blocks) if runs is None else runs
        assert len(self.runs) == len(blocks), "a batch brings runs for each block of its rank"

    def sees(self, number: int) -> bool:
        """Whether any query sees a key of a block."""
        return self.blocks[number].keys.stop > 0 and (self.runs[number] is not None or not self.packed)

    def bands(self, number: int) -> Iterator[tuple[slice, slice, Band, Documents | None]]:
        """The bands of a block of a layer with a window, with the documents of their queries and keys."""
        for queries, keys, band in self.blocks[number].bands or ():
            of = self.documents[number] if self.documents is not None else None
            yield queries, keys, band, None if of is None else (of[0][:, queries], of[1][:, keys])


class Attended:
    """Attention to all blocks that were added so far, in fp32. The first block is the rank's own, of which every query sees a key."""

    def __init__(self, query: Tensor, plan: Plan) -> None:
        self.query, self.plan = query, plan
        self.out, self.log_sums = torch.empty(0), torch.empty(0)

    def add(self, number: int, key: Tensor, value: Tensor) -> None:
        """Attend to a block of keys too."""
        if not self.plan.sees(number):
            return
        block, runs = self.plan.blocks[number], self.plan.runs[number]
        if block.bands is not None:
            self._add_bands(number, key, value)
            return
        kernel = kernel_for(self.query, key, packed=self.plan.packed, cut=True)
        query, key, value = _held(self.query, block.queries), _held(key, block.keys), _held(value, block.keys)
        out, log_sums = part(kernel, query, key, value, causal=block.causal, runs=runs)
        if block.causal:
            self.out, self.log_sums = out.float().contiguous(), log_sums.contiguous()
            return
        self._join(block.queries, out, log_sums)

    def _add_bands(self, number: int, key: Tensor, value: Tensor) -> None:
        if self.plan.blocks[number].causal:
            batch, tokens, heads, _ = self.query.shape
            self.out = torch.zeros_like(self.query, dtype=torch.float32)
            self.log_sums = self.out.new_full((batch, heads, tokens), float("-inf"))
        for queries, keys, band, documents in self.plan.bands(number):
            self._join(queries, *banded(self.query[:, queries], key[:, keys], value[:, keys], band, documents))

    def _join(self, queries: slice, out: Tensor, log_sums: Tensor) -> None:
        """Add attention of some queries to further keys; either may have seen no key."""
        before, here = self.log_sums[..., queries], self.out[:, queries]
        both = torch.logaddexp(before, log_sums)
        share = (log_sums - both.clamp(min=torch.finfo(torch.float32).min)).exp()
        here.lerp_(out.float(), share.transpose(1, 2)[..., None])
        before.copy_(both)

    def result(self, sinks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output in the precision of the queries, and the log-sum-exp, with the sinks if there are any."""
        if sinks is not None:
            self.out, self.log_sums = with_sinks(self.out, self.log_sums, sinks)
        return self.out.to(self.query.dtype), self.log_sums


class Gradients:
    """Gradients of attention to blocks of keys; those of the queries are added up in fp32."""

    def __init__(self, d_out: Tensor, query: Tensor, out: Tensor, log_sums: Tensor, plan: Plan) -> None:
        self.d_out, self.query, self.out, self.log_sums, self.plan = d_out.contiguous(), query, out, log_sums, plan
        self.d_query = torch.zeros_like(query, dtype=torch.float32)

    def of(self, number: int, key: Tensor, value: Tensor) -> Tensor | None:
        """Gradients of the keys and values that the block's queries see, one above the other; None if there are none."""
        if not self.plan.sees(number):
            return None
        block, runs = self.plan.blocks[number], self.plan.runs[number]
        if block.bands is not None:
            return self._of_bands(number, key, value)
        kernel = kernel_for(self.query, key, packed=self.plan.packed, cut=True)
        d_out, query, out = (_held(x, block.queries) for x in (self.d_out, self.query, self.out))
        key, value, log_sums = _held(key, block.keys), _held(value, block.keys), self.log_sums[..., block.queries]
        d_query, d_key, d_value = part_back(kernel, d_out, query, key, value, out, log_sums, causal=block.causal, runs=runs)
        self.d_query[:, block.queries] += d_query
        return torch.stack((d_key, d_value)).float()

    def _of_bands(self, number: int, key: Tensor, value: Tensor) -> Tensor:
        """Gradients of all keys and values of a block in bands."""
        found = torch.zeros((2, *key.shape), dtype=torch.float32, device=key.device)
        for queries, keys, band, documents in self.plan.bands(number):
            d_out, query, out = (x[:, queries] for x in (self.d_out, self.query, self.out))
            log_sums = self.log_sums[..., queries]
            d_query, d_key, d_value = banded_back(d_out, query, key[:, keys], value[:, keys], out, log_sums, band, documents)
            self.d_query[:, queries] += d_query
            found[0, :, keys] += d_key
            found[1, :, keys] += d_value
        return found

    def of_sinks(self, sinks: Tensor | None) -> Tensor | None:
        """Gradients of the sinks."""
        return None if sinks is None else sink_gradients(self.d_out, self.out, self.log_sums, sinks)


def _held(x: Tensor, tokens: slice) -> Tensor:
    """Some tokens of a tensor, one after another: kernels differ in the strides that they accept."""
    return x[:, tokens].contiguous()


class _RingAttention(torch.autograd.Function):
    """Attention over the keys of all ranks, block by block; [B, T, N, D]."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, plan: Plan, axis: Axis) -> Tensor:
        held, attended = torch.stack((key, value)), Attended(query, plan)
        for turn in range(axis.size):
            moving = _Turn(axis, held) if turn < axis.size - 1 else None
            attended.add((axis.index - turn) % axis.size, *held)
            held = moving.wait() if moving else held
        out, log_sums = attended.result(sinks)
        ctx.save_for_backward(query, key, value, sinks, out, log_sums)
        ctx.plan, ctx.axis = plan, axis
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        query, key, value, sinks, out, log_sums = ctx.saved_tensors
        axis, plan = ctx.axis, ctx.plan
        held, found = torch.stack((key, value)), Gradients(d_out, query, out, log_sums, plan)
        d_own: Tensor | None = None  # gradients of this rank's own keys and values
        carried: _Turn | None = None  # gradients of other ranks' keys and values, on their way back
        for turn in range(axis.size):
            rank = (axis.index - turn) % axis.size
            moving = _Turn(axis, held) if turn < axis.size - 1 else None
            d_seen = found.of(rank, *held)
            held = moving.wait() if moving else held
            if turn == 0:
                d_own = d_seen
                continue
            # Gradients follow their keys around the ring, one step behind, and reach their rank with the last step.
            d_held = torch.zeros_like(held, dtype=torch.float32) if carried is None else carried.wait().float()
            if d_seen is not None:
                d_held[:, :, plan.blocks[rank].keys] += d_seen
            carried = _Turn(axis, d_held.to(key.dtype))
        assert d_own is not None and carried is not None, "a ring has two ranks or more"
        d_key, d_value = (d_own + carried.wait()).to(key.dtype)
        return found.d_query.to(query.dtype), d_key, d_value, found.of_sinks(sinks), None, None


class _GatheredAttention(torch.autograd.Function):
    """Attention to gathered keys and values, [2, B, S, N, D]: to the rank's own, then by each of its pieces to the others before it."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, both: Tensor, sinks: Tensor | None, others: Tensor, index: int, plan: Plan) -> Tensor:
        attended = Attended(query, plan)
        for number, keys in enumerate(_gathered_keys(query, both, others, index)):
            attended.add(number, *keys)
        out, log_sums = attended.result(sinks)
        ctx.save_for_backward(query, both, sinks, others, out, log_sums)
        ctx.index, ctx.plan = index, plan
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None, None]:
        query, both, sinks, others, out, log_sums = ctx.saved_tensors
        own, before, _ = _gathered_keys(query, both, others, ctx.index)
        found = Gradients(d_out, query, out, log_sums, ctx.plan)
        d_both, d_before = torch.zeros_like(both), torch.zeros_like(before, dtype=torch.float32)
        d_own = found.of(0, *own)
        assert d_own is not None, "every query sees its own key"
        d_both.narrow(TOKENS + 1, ctx.index * query.shape[TOKENS], query.shape[TOKENS]).copy_(d_own)
        for number in (1, 2):
            d_seen = found.of(number, *before)
            if d_seen is not None:
                d_before[:, :, ctx.plan.blocks[number].keys] += d_seen
        d_both.index_copy_(TOKENS + 1, others, d_before.to(both.dtype))
        return found.d_query.to(query.dtype), d_both, found.of_sinks(sinks), None, None, None


def _gathered_keys(query: Tensor, both: Tensor, others: Tensor, index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values for each block: the rank's own, and twice the others."""
    before = both.index_select(TOKENS + 1, others)
    return both.narrow(TOKENS + 1, index * query.shape[TOKENS], query.shape[TOKENS]), before, before
