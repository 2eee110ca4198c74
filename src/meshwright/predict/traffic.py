"""What one rank sends in a training step: every flow of every axis, as the trainer sends it, byte by byte.

A flow is a collective or a message that a step repeats. The bytes of a collective are those that a rank must send if nothing is sent twice:
(n - 1) / n of the payload in an all-gather, a reduce-scatter or an all-to-all of n ranks, and twice that in an all-reduce, which is a
reduce-scatter and an all-gather. The payload is the whole tensor that is gathered, scattered or summed. A message sends its payload, and
so does an exchange of rows, in which every rank has another number of rows for every other. The sum of loss, tokens and squared gradients
over all ranks is left out: a few numbers per step, for each rank and for each routed expert. A test counts the bytes in the trainer's
process groups and finds these numbers (tests/train/test_traffic.py).

How many rows tokens send to the ranks of their experts is known once they have chosen. With these numbers (`Step.visits`) every byte of
expert parallelism is exact; without them `even_visits` stands for them, which is the mean where every expert is equally likely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.model import Model
from meshwright.describe.recipe import recipe
from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.predict.parameters import (
    BUCKET_PARAMETERS,
    SMALLEST_BUCKETS,
    Chunk,
    Parameter,
    buckets,
    chunks_of,
    gathered_units,
    layers_at,
)

FP32_BYTES, INT64_BYTES = 4, 8
GATHER, SCATTER, REDUCE, SWITCH, MESSAGE = "all-gather", "reduce-scatter", "all-reduce", "all-to-all", "message"
EXCHANGE = "exchange of rows"  # an all-to-all whose parts differ in size; its payload is what a rank sends to others


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One kind of collective or message that a rank takes part in `count` times a step."""

    axis: str
    what: str
    kind: str
    num_ranks: int
    payload_bytes: int  # each time
    count: int

    @property
    def sent_bytes(self) -> float:
        """Bytes that the rank sends in a step."""
        return self.count * sent_bytes(self.kind, self.payload_bytes, self.num_ranks)


def sent_bytes(kind: str, payload_bytes: float, num_ranks: int) -> float:
    """Bytes that one of `num_ranks` must send in a collective, or in a message to one other."""
    if kind in (MESSAGE, EXCHANGE):
        return payload_bytes
    share = payload_bytes * (num_ranks - 1) / num_ranks
    return 2 * share if kind == REDUCE else share


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of an element: hidden states, gathered weights, reduced gradients."""

    activation: int
    weight: int
    gradient: int


def sizes_of(precision: str) -> Sizes:
    """Bytes of an element under a recipe; hidden states are sent in bf16, except in fp32."""
    wanted = recipe(precision)
    weight_bytes, gradient_bytes = wanted.trainer_gather_bytes or wanted.gather_bytes, wanted.trainer_reduce_bytes or wanted.reduce_bytes
    return Sizes(int(wanted.tensor_bytes), int(weight_bytes), int(gradient_bytes))


@dataclass(frozen=True, slots=True)
class Visit:
    """The tokens that visit experts on other ranks when one layer runs one micro-batch, and those of others that visit this rank."""

    sent: int  # rows that this rank sends: a token counts once for each other rank that has experts for it, or parts of them
    received: int


@dataclass(frozen=True)
class Step:
    """The step of one stage: its content, and how often it runs."""

    model: Model
    workload: Workload
    layout: Layout
    stage: int = 0
    bucket_parameters: int = BUCKET_PARAMETERS
    visits: tuple[Visit, ...] = ()  # one for each layer with experts and micro-batch; empty: as many as `even_visits` says
    shard: int | None = None  # this rank's position among those that share a state; None: the one that sends the most

    @property
    def sizes(self) -> Sizes:
        """Bytes of elements."""
        return sizes_of(self.workload.precision)

    @property
    def num_micro_batches(self) -> int:
        """Number of micro-batches of a replica."""
        return self.layout.num_micro_batches(self.workload.global_batch)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on a context-parallel rank."""
        return self.layout.micro_batch * self.workload.seq_len // self.layout.cp

    @property
    def hidden_bytes(self) -> int:
        """Bytes of the hidden states of these tokens."""
        return self.tokens * self.model.hidden * self.sizes.activation

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient on this rank. A single rank that adds nothing up keeps gradients as they are computed."""
        is_as_it_comes = max(num_same(self.layout), num_same_experts(self.model, self.layout)) == 1 and self.num_micro_batches == 1
        return self.sizes.activation if is_as_it_comes else self.sizes.gradient

    @property
    def chunks(self) -> list[Chunk]:
        """The chunks of this stage."""
        return chunks_of(self.model, self.layout, self.stage)

    @property
    def num_layers(self) -> int:
        """The number of layers of this stage, with those of multi-token prediction."""
        return layers_at(self.model, self.layout, self.stage) + self.num_ahead

    @property
    def num_ahead(self) -> int:
        """The number of these that are of multi-token prediction."""
        return self.model.num_prediction_layers if self.is_last else 0

    @property
    def num_expert_layers(self) -> int:
        """The number of these that have experts."""
        return sum(chunk.num_layers - chunk.num_dense for chunk in self.chunks)

    @property
    def num_mlps(self) -> int:
        """The number of these that have an MLP which tensor ranks divide: a dense one, or shared experts."""
        experts = self.model.experts
        return self.num_layers - (self.num_expert_layers if experts and not experts.num_shared else 0)

    @property
    def is_first(self) -> bool:
        """Whether the embedding is on this stage."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the loss is on this stage."""
        return self.stage == self.layout.pp - 1


def is_counted_whole(model: Model, workload: Workload) -> bool:
    """Whether all parameters are counted: those of a model that is trained completely."""
    return not workload.adapters


def flows(step: Step) -> tuple[Flow, ...]:
    """Every flow of a rank of a stage, for a model whose parameters are all counted.

    If a state does not divide evenly over the ranks that share it, the rank is the first of them, which holds the most.
    """
    assert is_counted_whole(step.model, step.workload), "ask is_counted_whole first"
    within = [*layer_flows(step), *expert_flows(step), *balance_flows(step)]
    return merged([*within, *norm_flows(step), *copied_flows(step), *tied_flows(step), *data_flows(step)])


def layer_flows(step: Step) -> tuple[Flow, ...]:
    """Flows of hidden states, keys and values: those of layers, loss and pipeline, for any model."""
    return merged([*tensor_flows(step), *context_flows(step), *pipeline_flows(step)])


def merged(found: Iterable[Flow]) -> tuple[Flow, ...]:
    """The flows that are not empty, with equal ones counted together."""
    counts: Counter[tuple[str, str, str, int, int]] = Counter()
    for flow in found:
        if flow.num_ranks > 1 and flow.count > 0:
            counts[flow.axis, flow.what, flow.kind, flow.num_ranks, flow.payload_bytes] += flow.count
    return tuple(
        Flow(axis=axis, what=what, kind=kind, num_ranks=ranks, payload_bytes=payload, count=count)
        for (axis, what, kind, ranks, payload), count in counts.items()
    )


def tensor_flows(step: Step) -> Iterator[Flow]:
    """Tensor parallelism: hidden states and latent vectors gathered and scattered, the sequence's parts of the ends, and the loss.

    A rank keeps its own part of a gathered input, so that the backward gathers each input again: by itself, or by recomputing the layer or
    its MLP. Recomputing a layer also repeats its first scatter, but not the last one, whose result the backward does not need; recomputing
    its MLP alone repeats that one. Latent vectors are gathered once for a forward, and kept: only recomputing the layer gathers them again.
    Routed experts take the rank's own part of the sequence, and gather nothing.
    """
    tp, m = step.layout.tp, step.num_micro_batches

    def flow(what: str, kind: str, payload_bytes: int, count: int) -> Flow:
        return Flow(axis="tp", what=what, kind=kind, num_ranks=tp, payload_bytes=payload_bytes, count=count)

    passes, again, mlp = m * step.num_layers, step.layout.recompute == "full", step.layout.has_part("mlp")
    latent = step.model.latent
    attentions = 0 if latent and latent.query_rank else passes  # that gather hidden states
    mlps = m * step.num_mlps
    yield flow("layers forward", GATHER, step.hidden_bytes, attentions + mlps)
    yield flow("layers forward", SCATTER, step.hidden_bytes, passes + mlps)
    yield flow("layers backward", GATHER, step.hidden_bytes, passes + mlps)
    yield flow("layers backward", SCATTER, step.hidden_bytes, attentions + mlps)
    yield flow("layers again", GATHER, step.hidden_bytes, attentions + mlps)
    if latent:
        vectors = step.tokens * (latent.query_rank + latent.key_value_rank + latent.rope_dim) * step.sizes.activation
        yield flow("latent vectors forward", GATHER, vectors, passes)
        yield flow("latent vectors again", GATHER, vectors, passes * again)
        yield flow("latent vectors backward", SCATTER, vectors, passes)
    yield flow("layers again", SCATTER, step.hidden_bytes, passes * again + mlps * mlp)
    if step.is_first:
        yield flow("embedding forward", SCATTER, step.hidden_bytes, m)
        yield flow("embedding backward", GATHER, step.hidden_bytes, m)
    yield flow("tokens ahead forward", SCATTER, step.hidden_bytes, m * step.num_ahead)
    yield flow("tokens ahead backward", GATHER, step.hidden_bytes, m * step.num_ahead)
    if step.is_last:
        losses = m * (1 + step.num_ahead)
        yield flow("head forward", GATHER, step.hidden_bytes, losses)
        yield flow("head backward", SCATTER, step.hidden_bytes, losses)
        yield flow("largest logits", REDUCE, step.tokens * FP32_BYTES, losses)
        yield flow("sums of the loss", REDUCE, 2 * step.tokens * FP32_BYTES, losses)


def expert_flows(step: Step) -> Iterator[Flow]:
    """Expert parallelism: how many rows go where, the rows with their weights and experts, and what experts make of them.

    A row goes to every rank that has a part of one of its experts. The backward pass sends the gradients of each the other way. Recomputing
    a layer repeats the forward, except for what comes back, which no gradient needs.
    """
    experts, ranks = step.model.experts, step.layout.expert_ranks
    if experts is None:
        return
    visits = step.visits or even_visits(step)
    again, hidden, label = step.layout.recompute == "full", step.model.hidden * step.sizes.activation, 2 * experts.num_active * FP32_BYTES

    def flow(what: str, rows: int, row_bytes: int, count: int = 1) -> Flow:
        return Flow(axis="ep", what=what, kind=EXCHANGE, num_ranks=ranks, payload_bytes=rows * row_bytes, count=count)

    numbers = 2 * ranks * INT64_BYTES
    yield Flow(axis="ep", what="numbers of rows", kind=SWITCH, num_ranks=ranks, payload_bytes=numbers, count=len(visits) * (1 + again))
    for visit in visits:
        yield flow("weights and experts", visit.sent, label, 1 + again)
        yield flow("tokens", visit.sent, hidden, 1 + again)
        yield flow("tokens back", visit.received, hidden)
        yield flow("gradients of weights", visit.received, label)
        yield flow("gradients of tokens", visit.received, hidden)
        yield flow("gradients of tokens back", visit.sent, hidden)


def even_visits(step: Step) -> tuple[Visit, ...]:
    """The mean numbers of rows if a token's experts are drawn at random, for every layer and micro-batch."""
    experts, layout = step.model.experts, step.layout
    assert experts is not None, "only tokens of a model with experts visit them"
    elsewhere = experts.num_experts - experts.num_experts // layout.ep
    missed = math.comb(elsewhere, experts.num_active) / math.comb(experts.num_experts, experts.num_active)  # tokens that pass a rank by
    rows = round(step.tokens / layout.tp * (layout.expert_ranks - 1) * (1 - missed))
    return (Visit(rows, rows),) * (step.num_expert_layers * step.num_micro_batches)


def balance_flows(step: Step) -> Iterator[Flow]:
    """Tensor and context parallelism: the loads of sequences that are divided, added up for the auxiliary loss."""
    training, experts = step.workload.training, step.model.experts
    if not (experts and training and training.balance.auxiliary) or training.balance.scope == "batch":
        return
    times = step.num_expert_layers * step.num_micro_batches * (1 + (step.layout.recompute == "full"))
    payload = step.layout.micro_batch * experts.num_experts * FP32_BYTES
    for axis, num_ranks in (("tp", step.layout.tp), ("cp", step.layout.cp)):
        yield Flow(axis=axis, what="loads of sequences", kind=REDUCE, num_ranks=num_ranks, payload_bytes=payload, count=times)


def norm_flows(step: Step) -> Iterator[Flow]:
    """Tensor parallelism: gradients of norms and biases, for which each rank has its part of the sequence, in one message."""
    elements = sum(_num_partial(step, chunk) for chunk in step.chunks)
    payload = elements * step.gradient_bytes
    yield Flow(axis="tp", what="norm gradients", kind=REDUCE, num_ranks=step.layout.tp, payload_bytes=payload, count=1)


def _num_partial(step: Step, chunk: Chunk) -> int:
    """Elements of this rank's shards of what tensor parallelism does not cut."""
    ranks = num_sharing(step.layout)
    if is_fully_sharded(step.layout):
        return sum(-(-p.shape[0] // ranks) * math.prod(p.shape[1:]) for p in chunk.parameters if not p.is_cut)
    whole = [sum(p.size for p in bucket) for bucket in _buckets(step, chunk) if not bucket[0].is_cut]
    return sum(-(-size // ranks) if step.layout.zero_stage else size for size in whole)


def copied_flows(step: Step) -> Iterator[Flow]:
    """Tensor parallelism: gradients of a key-value head that several ranks hold, each for its own queries, in one message."""
    copies = step.model.key_copies(step.layout.tp)
    if copies == 1:
        return
    by_shard = np.sum([_num_copied(step, chunk) for chunk in step.chunks], axis=0)
    elements = int(by_shard.max() if step.shard is None else by_shard[step.shard])
    payload = elements * step.gradient_bytes
    yield Flow(axis="tp", what="gradients of copied heads", kind=REDUCE, num_ranks=copies, payload_bytes=payload, count=int(payload > 0))


def _num_copied(step: Step, chunk: Chunk) -> NDArray[np.int64]:
    """Elements of copied heads in the shard of each rank that shares a state; all of them in each where nothing is sharded."""
    ranks = num_sharing(step.layout)
    first = np.arange(ranks)
    found = np.zeros(ranks, dtype=np.int64)
    if is_fully_sharded(step.layout):
        for p in chunk.parameters:
            rows = -(-p.shape[0] // ranks)
            found += _overlap(first * rows, rows, p.shape[0] - p.num_copied, p.shape[0]) * p.row
        return found
    for bucket in _buckets(step, chunk):
        size, end = sum(p.size for p in bucket), 0
        share, stride = (-(-size // ranks), -(-size // ranks)) if step.layout.zero_stage else (size, 0)
        for p in bucket:
            end += p.size
            found += _overlap(first * stride, share, end - p.num_copied * p.row, end)
    return found


def _overlap(start: NDArray[np.int64], length: int, first: int, last: int) -> NDArray[np.int64]:
    """How many numbers from `first` up to `last` are in each run of `length` that begins at `start`."""
    return np.asarray(np.maximum(np.minimum(start + length, last) - np.maximum(start, first), 0))


def context_flows(step: Step) -> Iterator[Flow]:
    """Context parallelism: keys and values (or heads) reach the other ranks, layer by layer.

    A ring passes keys and values on `cp - 1` times each way, and backward their gradients as often. What recomputing repeats is the
    forward; after attention alone (selective) not the last exchange of an all-to-all.
    """
    layout, m = step.layout, step.num_micro_batches
    cp, passes, element = layout.cp, m * step.num_layers, step.tokens * step.sizes.activation

    def flow(what: str, kind: str, payload_bytes: int, count: int) -> Flow:
        return Flow(axis="cp", what=what, kind=kind, num_ranks=cp, payload_bytes=payload_bytes, count=count)

    key_value = 2 * element * _key_width(step.model) * step.model.key_copies(layout.tp) // layout.tp
    again = passes * (layout.recompute == "full" or layout.has_part("selective"))
    if layout.cp_kind == "ring":
        yield flow("keys and values forward", MESSAGE, key_value, (cp - 1) * passes)
        yield flow("keys and values again", MESSAGE, key_value, (cp - 1) * again)
        yield flow("keys and values backward", MESSAGE, key_value, (cp - 1) * passes)
        yield flow("their gradients", MESSAGE, key_value, (cp - 1) * passes)
    elif layout.cp_kind == "all-gather":
        yield flow("keys and values forward", GATHER, key_value * cp, passes)
        yield flow("keys and values again", GATHER, key_value * cp, again)
        yield flow("their gradients", SCATTER, key_value * cp, passes)
    else:
        for what, width in _switched(step.model):
            payload = element * width // layout.tp
            yield flow(f"{what} forward", SWITCH, payload, passes)
            if what != "attended" or layout.recompute == "full":
                yield flow(f"{what} again", SWITCH, payload, again)
            yield flow(f"{what} backward", SWITCH, payload, passes)


def _switched(model: Model) -> tuple[tuple[str, int], ...]:
    """What an all-to-all moves from tokens to heads and back, and its width."""
    if model.latent:
        width = _key_width(model)
        return ("queries", width), ("keys", width), ("values", width), ("attended", width)
    return ("queries", model.query_dim), ("keys", model.kv_dim), ("values", model.kv_dim), ("attended", model.value_dim)


def _key_width(model: Model) -> int:
    """Width of the keys of all heads as attention has them; those of latent vectors are as wide as their values, or the other way round."""
    return model.num_heads * model.attended_dim if model.latent else model.kv_dim


def pipeline_flows(step: Step) -> Iterator[Flow]:
    """Pipeline parallelism: hidden states are sent to the next chunk, and their gradients to the previous one."""
    layout = step.layout
    payload, each = step.hidden_bytes // layout.tp, step.num_micro_batches
    for what, count in (("activations", layout.vp - step.is_last), ("gradients", layout.vp - step.is_first)):
        yield Flow(axis="pp", what=what, kind=MESSAGE, num_ranks=layout.pp, payload_bytes=payload, count=each * count)


def tied_flows(step: Step) -> Iterator[Flow]:
    """Pipeline parallelism: the two ends exchange the gradients of a table that they share."""
    layout, model = step.layout, step.model
    if not model.ends_share_table or not (step.is_first or step.is_last):
        return
    rows, ranks = model.vocab_rows(layout.tp), num_sharing(layout) if layout.zero_stage else 1
    elements = -(-rows // ranks) * model.hidden if is_fully_sharded(layout) else -(-rows * model.hidden // ranks)
    payload = elements * step.gradient_bytes
    yield Flow(axis="pp", what="tied table", kind=MESSAGE, num_ranks=layout.pp, payload_bytes=payload, count=1)


def num_same(layout: Layout) -> int:
    """Ranks that hold the same weights, except those of routed experts."""
    return layout.dp * layout.cp


def num_same_experts(model: Model, layout: Layout) -> int:
    """Ranks that hold the same routed experts; 1 if there are none."""
    return layout.dp * layout.cp * layout.tp // layout.expert_ranks if model.experts else 1


def num_sharing(layout: Layout) -> int:
    """Replicas that share one state: all of them if nothing is sharded."""
    return layout.sharing_ranks if layout.zero_stage else num_same(layout)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the ranks that hold the same weights divide their state: groups of ranks that each share one."""

    num_ranks: int  # of a group
    num_groups: int


def sharing_of(step: Step, parameter: Parameter) -> Sharing:
    """How the state of a parameter is divided. Of routed experts, as many ranks share one as for other weights if that divides them."""
    layout = step.layout
    if not parameter.is_routed:
        return Sharing(num_sharing(layout), num_same(layout) // num_sharing(layout))
    same = num_same_experts(step.model, layout)
    shared = math.gcd(same, layout.zero_ranks) if layout.zero_stage and layout.zero_ranks else same
    ranks = shared if shared > 1 or layout.zero_ranks == 1 else same
    return Sharing(ranks, same // ranks)


def is_fully_sharded(layout: Layout) -> bool:
    """Whether weights are gathered for each pass."""
    return layout.zero_stage == 3 and layout.dp * layout.cp > 1


def data_flows(step: Step) -> Iterator[Flow]:
    """Data parallelism (over context-parallel ranks too): gradients reduced and weights gathered, as the ZeRO stage has it.

    Buckets are padded to whole shards, and with ZeRO 3 the first dimension of each parameter is; padding is sent, and so counted.
    """
    each = _fully_sharded_flows if is_fully_sharded(step.layout) else _bucket_flows
    for chunk in step.chunks:
        yield from each(step, chunk)


def _replica_flow(what: str, kind: str, num_ranks: int, payload_bytes: int, count: int) -> Flow:
    return Flow(axis="dp", what=what, kind=kind, num_ranks=num_ranks, payload_bytes=payload_bytes, count=count)


def _bucket_flows(step: Step, chunk: Chunk) -> Iterator[Flow]:
    """ZeRO 0: an all-reduce a step. 1: a reduce-scatter a step, 2: one a micro-batch; both gather new weights once."""
    sizes = step.sizes
    for bucket in _buckets(step, chunk):
        sharing = sharing_of(step, bucket[0])
        ranks, groups = sharing.num_ranks, sharing.num_groups
        zero = min(step.layout.zero_stage, 2) if ranks > 1 else 0
        times = step.num_micro_batches if zero == 2 else 1
        size = sum(parameter.size for parameter in bucket)
        share = -(-size // ranks) if zero else size
        if zero:
            yield _replica_flow("gradients", SCATTER, ranks, share * ranks * sizes.gradient, times)
            yield _replica_flow("weights", GATHER, ranks, share * ranks * sizes.weight, 1)
        else:
            yield _replica_flow("gradients", REDUCE, ranks, size * sizes.gradient, 1)
        yield _replica_flow("gradients across groups", REDUCE, groups, share * sizes.gradient, times)


def _fully_sharded_flows(step: Step, chunk: Chunk) -> Iterator[Flow]:
    """ZeRO 3: each unit gathers its weights for a forward and again for a backward, and reduces gradients, every micro-batch."""
    sizes, m = step.sizes, step.num_micro_batches
    for unit in gathered_units(chunk, step.model):
        sharing = sharing_of(step, unit[0])
        ranks, groups = sharing.num_ranks, sharing.num_groups
        share = sum(-(-p.shape[0] // ranks) * math.prod(p.shape[1:]) for p in unit)
        yield _replica_flow("weights forward", GATHER, ranks, share * ranks * sizes.weight, m)
        yield _replica_flow("weights backward", GATHER, ranks, share * ranks * sizes.weight, m)
        yield _replica_flow("gradients", SCATTER, ranks, share * ranks * sizes.gradient, m)
        yield _replica_flow("gradients across groups", REDUCE, groups, share * sizes.gradient, m)


def _buckets(step: Step, chunk: Chunk) -> Iterator[list[Parameter]]:
    size = sum(parameter.size for parameter in chunk.parameters)
    most = max(min(step.bucket_parameters, size // SMALLEST_BUCKETS), 1)
    return buckets(chunk.parameters, most, shared=step.model.ends_share_table)


def sent_on(axis: str, found: Iterable[Flow]) -> tuple[float, int]:
    """Bytes that a rank sends on an axis in a step, and in how many collectives and messages."""
    mine = [flow for flow in found if flow.axis == axis]
    return sum(flow.sent_bytes for flow in mine), sum(flow.count for flow in mine)
