"""ZeRO 3: torch's `fully_shard` behind the same face as the buckets. Weights are gathered for each pass and given back after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.buckets import Numbers
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.shards import Cut, Shard, cuts_of, spans_of
from meshwright.train.parallel.tensor import decays, is_partial


class FullySharded:
    """One chunk whose weights, gradients and optimizer states are all shared out among replicas."""

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers) -> None:
        self.mesh, self.numbers = mesh, numbers
        self.loss_scale = float(mesh.num_replicas)  # fully_shard averages over replicas; the sum is wanted
        policy = MixedPrecisionPolicy(param_dtype=numbers.compute, reduce_dtype=numbers.gradient, cast_forward_inputs=False)
        device_mesh = mesh.replicas["replicate", "shard"] if mesh.replicate.size > 1 else mesh.replicas["shard"]
        chunk.to(numbers.state)
        cuts = cuts_of(chunk, mesh.tp)
        for module in units(chunk):
            unit = fully_shard(module, mesh=device_mesh, mp_policy=policy, reshard_after_forward=True)
            book_waits(unit, mesh.shard)
        set_prefetch(chunk)
        chunk.to_empty(device=mesh.device)
        self.parameters = dict(chunk.named_parameters())
        self.shards = [self._shard(name, parameter, cuts[name]) for name, parameter in self.parameters.items()]
        self._of_shard = list(self.parameters.values())

    def start(self) -> None:
        """Make ready for a new step."""
        self.forget()

    def finish(self) -> None:
        """Hand the reduced gradients to the shards; each backward has waited for its own."""
        for shard, parameter in zip(self.shards, self._of_shard, strict=True):
            shard.gradient = None if parameter.grad is None else local_of(parameter.grad).flatten()

    def publish(self) -> None:
        """Nothing to bring: the shards are the weights, and each pass gathers them."""

    def ready(self) -> None:
        """Nothing to wait for."""

    def forget(self) -> None:
        """Drop the gradients."""
        for shard, parameter in zip(self.shards, self._of_shard, strict=True):
            shard.gradient, parameter.grad = None, None

    def _shard(self, name: str, parameter: nn.Parameter, cuts: Sequence[Cut]) -> Shard:
        local = local_of(parameter.data)
        row = math.prod(cuts[0].local[1:])
        num_rows = sum(cut.local[0] for cut in cuts)
        rows = -(-num_rows // self.mesh.shard.size)  # as torch.chunk cuts
        first = min(self.mesh.shard.index * rows, num_rows)
        last = first + local.shape[0] if local.numel() else first
        return Shard(
            values=local.flatten() if local.is_contiguous() else local.reshape(-1),
            gradient=None,
            spans=tuple(spans_of(cuts, first * row, last * row, 0)),
            decays=decays(name, parameter),
            is_partial=is_partial(name) and self.mesh.tp.size > 1,
            copies=self.mesh.replicate.size,
        )


def units(chunk: Transformer) -> list[nn.Module]:
    """Modules that gather their weights by themselves, the chunk last. A tied table within one chunk belongs to the chunk."""
    parts: list[nn.Module] = list(chunk.layers.values())
    if not (chunk.embed is not None and chunk.head is not None and chunk.model.tied_embeddings):
        parts += [module for module in (chunk.embed, chunk.head) if module is not None]
    return [*parts, chunk]


def set_prefetch(chunk: Transformer) -> None:
    """Let each unit's backward gather the weights of the unit before it, and the first one's nothing.

    Left alone, torch gathers what ran before it in the order of forwards, which in a pipeline is another micro-batch's last layer.
    """
    parts = units(chunk)[:-1]
    ordered = sorted(parts, key=lambda unit: (unit is not chunk.embed, unit is chunk.head))  # layers keep their order
    for before, unit in zip((ordered[0], *ordered), (*ordered, chunk), strict=True):
        assert isinstance(before, FSDPModule) and isinstance(unit, FSDPModule), "units must be sharded before their prefetch is set"
        unit.set_modules_to_backward_prefetch([before])  # itself: already there, so nothing


WAITS = {
    "unshard": "all-gather of weights",
    "wait_for_unshard": "all-gather of weights",
    "post_backward": "gradient reduction",
    "finalize_backward": "gradient reduction",
}  # where torch's unit waits: a GPU in the second and the last alone, gloo where the collective is called


def book_waits(unit: FSDPModule, axis: Axis) -> None:
    """Book what a unit waits for on the axis of replicas, as every other collective is; copies to and from flat tensors are in it."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # torch 2.11 knows one
    for group in groups:
        for name, what in WAITS.items() if group is not None else ():
            setattr(group, name, _booked(getattr(group, name), what, axis))


def _booked(call: Callable[..., Any], what: str, axis: Axis) -> Callable[..., Any]:
    def booked(*args: Any, **kwargs: Any) -> Any:
        axis.marks.enter(what, axis.name, axis.ranks)
        with axis.timer.part(f"exposed_{axis.name}"):
            result = call(*args, **kwargs)
        axis.marks.leave()
        return result

    return booked


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
