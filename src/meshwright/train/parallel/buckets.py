"""Data parallelism: replicas add up their gradients, bucket by bucket, while the backward pass still runs.

Weights and gradients of a chunk are in flat buckets, in the order in which gradients are computed. When the last gradient of a bucket is
there, its reduction starts. ZeRO 0 sums it on all ranks. ZeRO 1 sums it on the rank with the optimizer's shard and gathers new weights.
ZeRO 2 does this for every micro-batch: the whole gradients of a bucket exist from its first gradient until the next bucket leaves, and none
when a backward pass is over. If groups of replicas each share a state, shards are summed across groups too: the second sum of a bucket
starts when the next bucket leaves. Weights are gathered in the order in which the next forward pass needs them, and each layer waits only
for its own. ZeRO 3 is torch's `fully_shard` (fully_sharded.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from meshwright.train.kernels.grouped import GroupedLinear
from meshwright.train.kernels.linear import Linear
from meshwright.train.model.experts import is_routed
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.collectives import Axis, all_gather_single, reduce_scatter_single
from meshwright.train.parallel.mesh import Mesh, Replicas
from meshwright.train.parallel.shards import Cut, Shard, Span, cuts_of, measures_of, spans_of, sum_of
from meshwright.train.parallel.tensor import decays, is_partial

TABLES = ("embed.weight", "head.weight", "next_embed.weight")  # those that a tied or predicting model has on two stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Number formats: of products, of summed gradients, and of the optimizer."""

    compute: torch.dtype = torch.float32
    gradient: torch.dtype = torch.float32
    state: torch.dtype = torch.float32
    fp8: bool = False  # whether products round their inputs to fp8


@dataclass(slots=True, eq=False)
class Bucket:
    """Parameters whose gradients are sent together, as flat tensors padded to whole shards."""

    parameters: list[nn.Parameter]
    weights: Tensor
    gradients: Tensor | None  # laid out like the weights; None in ZeRO 2, unless the bucket is being filled or sent
    mine: slice  # this rank's shard of the flat tensors
    shard: Shard
    incoming: Tensor | None  # where the result of a reduction is stored; None: in the gradients, or nothing is being sent
    views: list[Tensor]  # of the gradients, one per parameter
    counts: list[int]  # gradients added so far, one number per parameter
    replicas: Replicas  # the ranks that hold the same parameters
    zero_stage: int
    is_leaving: bool = False  # its gradients have left, and their sum is not in the shard yet
    work: dist.Work | None = None
    across: dist.Work | None = None  # the sum over groups that each share a state
    gathering: dist.Work | None = None


class DataParallel:
    """One chunk's weights on this rank: their buckets, reductions and shards."""

    loss_scale = 1.0

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers, num_micro_batches: int, bucket_parameters: int) -> None:
        self.mesh, self.numbers = mesh, numbers
        self.num_contributions = num_micro_batches
        self.overlaps = mesh.layout.overlap_dp
        self.takes = True  # gradients of a trial are dropped
        self.own: list[Tensor] = []  # `measures_of` this rank's buckets before they are summed
        self.landed: Tensor | None = None  # sum of what this rank received
        cuts = cuts_of(chunk, mesh.tp, mesh.ep, mesh.layout.etp)
        self.buckets = [
            self._bucket(names, chunk, [cuts[name] for name in names]) for names in list(grouped_parameters(chunk, bucket_parameters))
        ]
        self._needs = self._needed_by(chunk)
        self._leaving: Bucket | None = None  # the last one whose reduction has begun
        self._place: dict[nn.Parameter, tuple[Bucket, int]] = {}
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                self._place[parameter] = bucket, index
                parameter.register_post_accumulate_grad_hook(loosely(self._take))

    @property
    def shards(self) -> list[Shard]:
        """What this rank's optimizer updates."""
        return [bucket.shard for bucket in self.buckets]

    def add(self, parameter: nn.Parameter, gradient: Tensor) -> None:
        """Add the gradient of one micro-batch; the last one of a bucket starts its reduction."""
        bucket, index = self._place[parameter]
        each = bucket.zero_stage == 2
        if each:
            self._fill(bucket)
        if bucket.counts[index] == 0 or each:
            bucket.views[index].copy_(gradient)
        else:
            bucket.views[index].add_(gradient)
        bucket.counts[index] += 1
        is_whole = min(bucket.counts) == max(bucket.counts)
        if is_whole and (each or (self.overlaps and bucket.counts[index] == self.num_contributions)):
            self._leave(bucket)
            if not self.overlaps:
                self._land(bucket)

    def after_backward(self) -> None:
        """Called when all gradients of an operation have been added: in ZeRO 2, only their sums stay."""
        for bucket in self.buckets:
            if bucket.zero_stage == 2:
                self._land(bucket)

    def finish(self) -> None:
        """Wait until the gradients of the whole batch are in the shards."""
        for bucket in self.buckets:
            if not self.overlaps and bucket.zero_stage < 2:
                self._leave(bucket)
            self._land(bucket)
        checked = self._checked()
        if self.mesh.num_replicas > 1 and checked:
            self.landed = torch.stack([sum_of(_summed(bucket)) for bucket in checked]).sum()
        self.forget()

    def start(self) -> None:
        """Prepare for a new step."""
        self.own.clear()
        for bucket in self.buckets:
            if bucket.zero_stage == 2:
                _summed(bucket).zero_()

    def publish(self) -> None:
        """Gather the new weights of the shards on all ranks; `ready` waits for them."""
        for bucket in self._in_forward_order():
            if bucket.zero_stage > 0:
                own = bucket.weights[bucket.mine].clone()
                bucket.gathering = all_gather_single(bucket.weights, own, group=bucket.replicas.shard.group, async_op=True)

    def ready(self) -> None:
        """Wait for weights that are still being received."""
        self._await(self._in_forward_order())

    def before_forward(self) -> None:
        """Called before a chunk's first forward pass of a step: its layers wait for themselves, unless nothing is to overlap."""
        if not self.overlaps:
            self.ready()

    def _await(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            bucket.replicas.shard.wait(bucket.gathering, "all-gather of weights")
            bucket.gathering = None

    def _in_forward_order(self) -> list[Bucket]:
        """All buckets, those that a forward pass needs first in front."""
        ordered = {id(bucket): bucket for buckets in self._needs for bucket in buckets}
        return list(ordered.values())

    def _needed_by(self, chunk: Transformer) -> list[list[Bucket]]:
        """The buckets that each part of a chunk needs, in the order of its forward pass; each part waits for them when it begins."""
        parts = [part for part in (chunk.embed, *chunk.layers.values(), chunk.head, chunk.next_embed) if part is not None]
        needs = []
        for part in parts:
            held = {id(parameter) for parameter in part.parameters()}
            needed = [bucket for bucket in self.buckets if any(id(parameter) in held for parameter in bucket.parameters)]
            part.register_forward_pre_hook(lambda *_, needed=needed: self._await(needed))
            needs.append(needed)
        return needs

    def equal(self) -> list[Tensor]:
        """Tensors that all replicas hold alike after an update: the weights, and the optimizer's copy of them if it is not shared out."""
        held = [bucket.weights for bucket in self._checked()]
        held += [bucket.shard.values for bucket in self._checked() if bucket.zero_stage == 0 and bucket.shard.copy is not None]
        return held

    def equal_shards(self) -> list[Shard]:
        """Shards that all replicas hold alike, with their moments."""
        return [bucket.shard for bucket in self._checked() if bucket.zero_stage == 0]

    def _checked(self) -> list[Bucket]:
        """The buckets that replicas compare: those that all data and context parallel ranks hold alike, so none of routed experts."""
        return [bucket for bucket in self.buckets if bucket.replicas is self.mesh.replicas]

    def forget(self) -> None:
        """Drop the gradients of a step that will not be applied."""
        for bucket in self.buckets:
            bucket.counts = [0] * len(bucket.counts)
            if bucket.zero_stage == 2 and not bucket.is_leaving:
                bucket.gradients, bucket.views = None, []

    def _take(self, parameter: nn.Parameter) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None, "torch calls this once it has put a gradient there"
        if self.takes:
            self.add(parameter, gradient)

    def _leave(self, bucket: Bucket) -> None:
        """Start the reduction of a bucket, and the second sum of the one that left before it: by now its first is probably done."""
        axis = bucket.replicas.shard
        self._move_on(bucket)
        self._leaving, bucket.is_leaving = bucket, True
        assert bucket.gradients is not None, "a bucket leaves when it is filled"
        if self.mesh.num_replicas > 1 and bucket.replicas is self.mesh.replicas:
            self.own.append(measures_of(bucket.gradients))
        if bucket.zero_stage == 0 and axis.size > 1:
            bucket.work = dist.all_reduce(bucket.gradients, group=axis.group, async_op=True)
        elif axis.size > 1:
            if bucket.incoming is None:
                bucket.incoming = torch.empty_like(_summed(bucket))
            bucket.work = reduce_scatter_single(bucket.incoming, bucket.gradients, group=axis.group, async_op=True)

    def _move_on(self, bucket: Bucket) -> None:
        """Start the second sum of the bucket that left before this one; in ZeRO 2, release those whose sums are there by now."""
        for earlier in self.buckets:
            is_last_sum = earlier.across is not None or earlier.replicas.replicate.size == 1
            if earlier.zero_stage == 2 and earlier.is_leaving and earlier is not bucket and is_last_sum:
                self._land(earlier)
        if self._leaving is not None and self._leaving is not bucket:
            self._cross(self._leaving)

    def _fill(self, bucket: Bucket) -> None:
        """Make room for the gradients of a micro-batch, unless there is; padding is zero, because it counts in the norm."""
        if bucket.gradients is not None:
            return
        bucket.gradients = torch.empty_like(bucket.weights, dtype=self.numbers.gradient)
        sizes = [parameter.numel() for parameter in bucket.parameters]
        *parts, padding = bucket.gradients.split([*sizes, bucket.gradients.numel() - sum(sizes)])
        bucket.views = [part.view(parameter.shape) for part, parameter in zip(parts, bucket.parameters, strict=True)]
        padding.zero_()

    def _land(self, bucket: Bucket) -> None:
        """Wait for the sum of a bucket and put it into the shard."""
        if not bucket.is_leaving and bucket.zero_stage == 2:
            return  # no reduction is running
        bucket.is_leaving = False
        self._cross(bucket)
        bucket.replicas.replicate.wait(bucket.across, "gradient reduction")
        bucket.across = None
        if self._leaving is bucket:
            self._leaving = None
        if bucket.zero_stage == 2:
            _summed(bucket).add_(_landed(bucket))
            bucket.gradients, bucket.incoming, bucket.views = None, None, []

    def _cross(self, bucket: Bucket) -> None:
        """Wait for the sum of a bucket within its group, and start the sum over groups; nothing if that has begun."""
        replicas = bucket.replicas
        if bucket.across is not None or (bucket.work is None and replicas.shard.size > 1):
            return
        replicas.shard.wait(bucket.work, "gradient reduction")
        bucket.work = None
        if replicas.replicate.size > 1:
            bucket.across = dist.all_reduce(_landed(bucket), group=replicas.replicate.group, async_op=True)

    def _bucket(self, names: Sequence[str], chunk: Transformer, cuts: Sequence[Sequence[Cut]]) -> Bucket:
        mesh, found = self.mesh, dict(chunk.named_parameters())
        sizes = [found[name].numel() for name in names]
        replicas = mesh.expert_replicas if is_routed(names[0]) else mesh.replicas
        # Weights of experts may have replicas where others have none: without them nothing is released for ZeRO 3.
        zero_stage = min(mesh.layout.zero_stage, 2) if replicas.shard.size > 1 else 0
        num_shards = replicas.shard.size if zero_stage > 0 else 1
        share = -(-sum(sizes) // num_shards)
        index = replicas.shard.index if zero_stage > 0 else 0
        mine = slice(index * share, (index + 1) * share)
        weights = torch.zeros(share * num_shards, dtype=self.numbers.compute, device=mesh.device)
        gradients = torch.zeros_like(weights, dtype=self.numbers.gradient) if zero_stage < 2 else None
        parameters, views, offset = [], [], 0
        for name, size in zip(names, sizes, strict=True):
            old = found[name]
            parameters.append(nn.Parameter(weights[offset : offset + size].view(old.shape)))
            if gradients is not None:
                views.append(gradients[offset : offset + size].view(old.shape))
            put_in_place(chunk, old, parameters[-1])
            offset += size
        summed = torch.zeros(share, dtype=self.numbers.gradient, device=mesh.device) if zero_stage > 0 else gradients
        incoming = summed if zero_stage == 1 else None
        shard = self._shard(names, parameters, cuts, weights[mine], mine)
        shard.copies = replicas.size // num_shards
        shard.gradient = summed
        return Bucket(parameters, weights, gradients, mine, shard, incoming, views, [0] * len(names), replicas, zero_stage)

    def _shard(
        self, names: Sequence[str], parameters: Sequence[nn.Parameter], cuts: Sequence[Sequence[Cut]], own: Tensor, mine: slice
    ) -> Shard:
        is_state = self.numbers.state == self.numbers.compute
        spans: list[Span] = []
        offset = 0
        for held, parameter in zip(cuts, parameters, strict=True):
            first, last = max(mine.start, offset), min(mine.stop, offset + parameter.numel())
            spans += spans_of(held, first - offset, last - offset, first - mine.start)
            offset += parameter.numel()
        layout = self.mesh.layout
        return Shard(
            values=own if is_state else own.to(self.numbers.state),
            copy=None if is_state else own,
            gradient=None,
            spans=tuple(spans),
            decays=decays(names[0], parameters[0]),
            is_partial=is_partial(names[0]) and layout.tp > 1,
            copies=1,
        )


def _landed(bucket: Bucket) -> Tensor:
    """Where the result of a bucket's reduction is."""
    found = bucket.incoming if bucket.incoming is not None else bucket.gradients
    assert found is not None, "a reduction has been started"
    return found


def _summed(bucket: Bucket) -> Tensor:
    """Where the gradients of a bucket are added up over micro-batches."""
    assert bucket.shard.gradient is not None, "a bucket's shard is made with its gradient"
    return bucket.shard.gradient


def loosely(method: Callable[[nn.Parameter], None]) -> Callable[[nn.Parameter], None]:
    """The same call without a reference to its object: Python's collector does not see torch's hooks, so groups would never be released."""
    held = weakref.WeakMethod(method)

    def call(parameter: nn.Parameter) -> None:
        found = held()
        assert found is not None, "a replica holds its data parallelism as long as it holds its parameters"
        found(parameter)

    return call


def put_in_place(chunk: nn.Module, old: nn.Parameter, new: nn.Parameter) -> None:
    """Put `new` in every place where `chunk` has `old`: a tied table is in two places."""
    for module in chunk.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is old:
                setattr(module, name, new)


def grouped_parameters(chunk: Transformer, most: int) -> Iterator[list[str]]:
    """Names of the chunk's parameters in buckets of about `most` elements, in the order in which gradients are computed.

    A bucket holds one kind of parameters: with or without weight decay, whole or partial over tensor ranks, of routed experts or not,
    postponed or not in a zero-bubble schedule. A table that the first and the last stage both hold has its own bucket, so that they divide
    it in the same way.
    """
    products = {id(module.weight) for module in chunk.modules() if isinstance(module, Linear | GroupedLinear)}
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name, parameter in reversed(list(chunk.trained_parameters())):
        alone = name if chunk.model.ends_share_table and name in TABLES else ""
        kind = (alone, decays(name, parameter), is_partial(name), is_routed(name), id(parameter) in products)
        kinds.setdefault(kind, []).append(name)
    sizes = {name: parameter.numel() for name, parameter in chunk.named_parameters()}
    for names in kinds.values():
        held: list[str] = []
        for name in names:
            held.append(name)
            if sum(sizes[n] for n in held) >= most:
                yield held
                held = []
        if held:
            yield held


def add_across_tensor_ranks(shards: Sequence[Shard], mesh: Mesh) -> None:
    """Add up the gradients that each tensor-parallel rank computed for its part of the sequence (norms and biases), in one message.

    A second message, over fewer ranks, adds up the gradients of ranks that hold the same key-value head.
    """
    _add_joined([shard.gradient for shard in shards if shard.is_partial and shard.gradient is not None], mesh.tp)
    if mesh.same_keys is not None:
        _add_joined([part for shard in shards for part in shard.copied()], mesh.same_keys)


def _add_joined(gradients: Sequence[Tensor], axis: Axis) -> None:
    """Add up gradients over an axis, in place, in one message."""
    if axis.size == 1 or not gradients:
        return
    joined = torch.cat([gradient.flatten() for gradient in gradients])
    axis.all_reduce(joined)
    for gradient, summed in zip(gradients, joined.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
