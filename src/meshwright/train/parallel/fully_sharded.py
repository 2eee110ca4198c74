"""ZeRO 3: torch's `fully_shard` with the same interface as the buckets. Weights are gathered for each pass and released after it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.train.model.experts import RoutedExperts, is_routed
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.buckets import Numbers
from meshwright.train.parallel.collectives import Axis
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.shards import Cut, Shard, cuts_of, has_padding, spans_of
from meshwright.train.parallel.tensor import decays, is_partial


class FullySharded:
    """One chunk whose weights, gradients and optimizer states are all divided among replicas."""

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers) -> None:
        self.mesh, self.numbers = mesh, numbers
        self.loss_scale = float(mesh.num_replicas)  # fully_shard averages over replicas, but we need the sum
        policy = MixedPrecisionPolicy(param_dtype=numbers.compute, reduce_dtype=numbers.gradient, cast_forward_inputs=False)
        for parameter in chunk.parameters():
            parameter.data = parameter.data.to(numbers.state if parameter.requires_grad else numbers.compute)
        shapes = {name: parameter.shape for name, parameter in chunk.named_parameters()}
        cuts = cuts_of(chunk, mesh.tp, mesh.ep, mesh.layout.etp)
        for module in experts_of(chunk):
            unit = fully_shard(module, mesh=mesh.expert_replicas.device_mesh(mesh.rank), mp_policy=policy, reshard_after_forward=True)
            book_waits(unit, mesh.expert_replicas.shard)
        for module in units(chunk):
            unit = fully_shard(module, mesh=mesh.replicas.device_mesh(mesh.rank), mp_policy=policy, reshard_after_forward=True)
            book_waits(unit, mesh.shard)
        set_prefetch(chunk)
        chunk.to_empty(device=mesh.device)
        shards = {name: self._shard(name, parameter, shapes[name], cuts[name]) for name, parameter in chunk.named_parameters()}
        self.parameters = dict(chunk.trained_parameters())
        self.shards = [shards[name] for name in self.parameters]
        self.frozen = [shard for name, shard in shards.items() if name not in self.parameters]

    def start(self) -> None:
        """Prepare for a new step."""
        self.forget()

    def finish(self) -> None:
        """Give the reduced gradients to the shards; each backward pass has waited for its own."""
        # Each was divided by the number of ranks that hold it, which for experts is not the number that the loss was multiplied by.
        of_experts = self.mesh.expert_replicas.size / self.mesh.num_replicas
        for shard, (name, parameter) in zip(self.shards, self.parameters.items(), strict=True):
            shard.gradient = None if parameter.grad is None else local_of(parameter.grad).flatten()
            if shard.gradient is not None and is_routed(name) and of_experts != 1.0:
                shard.gradient.mul_(of_experts)

    def publish(self) -> None:
        """Does nothing: the shards are the weights, and each pass gathers them."""

    def ready(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def before_forward(self) -> None:
        """Does nothing: each layer gathers its own weights."""

    def forget(self) -> None:
        """Drop the gradients."""
        for shard, parameter in zip(self.shards, self.parameters.values(), strict=True):
            shard.gradient, parameter.grad = None, None

    def _shard(self, name: str, parameter: nn.Parameter, whole: Sequence[int], cuts: Sequence[Cut]) -> Shard:
        """The shard of one parameter, which had the shape `whole` before it was shared out by rows."""
        replicas = self.mesh.expert_replicas if is_routed(name) else self.mesh.replicas
        local = local_of(parameter.data)
        if has_padding(cuts):
            local.zero_()
        row, num_rows = math.prod(whole[1:]), whole[0]
        rows = -(-num_rows // replicas.shard.size)  # as torch.chunk divides
        first = min(replicas.shard.index * rows, num_rows)
        last = first + local.shape[0] if local.numel() else first
        return Shard(
            values=local.flatten() if local.is_contiguous() else local.reshape(-1),
            gradient=None,
            spans=tuple(spans_of(cuts, first * row, last * row, 0)),
            decays=decays(name, parameter),
            is_partial=is_partial(name) and self.mesh.tp.size > 1,
            copies=replicas.replicate.size,
        )


def experts_of(chunk: Transformer) -> list[nn.Module]:
    """The routed experts of each layer, which other ranks share than the rest of the layer."""
    return [module for module in chunk.modules() if isinstance(module, RoutedExperts)]


def units(chunk: Transformer) -> list[nn.Module]:
    """Modules that gather their weights separately, the chunk last.

    Tables that a pass reads at two times belong to the chunk: a tied one whose both ends are here, and those of multi-token prediction.
    """
    parts: list[nn.Module] = list(chunk.layers.values())
    if not (chunk.head is not None and ((chunk.embed is not None and chunk.model.tied_embeddings) or chunk.predictions())):
        parts += [module for module in (chunk.embed, chunk.head) if module is not None]
    return [*parts, chunk]


def set_prefetch(chunk: Transformer) -> None:
    """Make the backward pass of each unit gather the weights of the unit before it.

    By default torch gathers the unit that ran before in the order of forward passes; in a pipeline this is the last layer of another
    micro-batch.
    """
    parts = units(chunk)[:-1]
    ordered = sorted(parts, key=lambda unit: (unit is not chunk.embed, unit is chunk.head))  # layers keep their order
    for before, unit in zip((ordered[0], *ordered), (*ordered, chunk), strict=True):
        assert isinstance(before, FSDPModule) and isinstance(unit, FSDPModule), "units must be sharded before their prefetch is set"
        unit.set_modules_to_backward_prefetch([before])  # itself: already gathered, so nothing is gathered


WAITS = {
    "unshard": "all-gather of weights",
    "wait_for_unshard": "all-gather of weights",
    "post_backward": "gradient reduction",
    "finalize_backward": "gradient reduction",
}  # where torch's unit waits: a GPU in the second and the last alone, gloo where the collective is called


def book_waits(unit: FSDPModule, axis: Axis) -> None:
    """Count the waits of a unit as exposed time between replicas, with the copies to and from flat tensors."""
    state = unit._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]  # torch 2.11 has only one group
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
