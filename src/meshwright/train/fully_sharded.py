"""ZeRO 3: torch's `fully_shard` behind the same face as the buckets. Weights are gathered for each pass and given back after it."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from meshwright.train.data_parallel import Numbers
from meshwright.train.mesh import Mesh
from meshwright.train.shards import Cut, Shard, cuts_of
from meshwright.train.tensor_parallel import decays, is_partial
from meshwright.train.transformer import Transformer


class FullySharded:
    """One chunk whose weights, gradients and optimizer states are all shared out among replicas."""

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers) -> None:
        self.mesh, self.numbers = mesh, numbers
        self.loss_scale = float(mesh.num_replicas)  # fully_shard averages over replicas; the sum is wanted
        policy = MixedPrecisionPolicy(param_dtype=numbers.compute, reduce_dtype=numbers.gradient, cast_forward_inputs=False)
        device_mesh = mesh.replicas if mesh.replicate.size > 1 else mesh.replicas["shard"]
        chunk.to(numbers.state)
        cuts = cuts_of(chunk, mesh.tp)
        for module in units(chunk):
            fully_shard(module, mesh=device_mesh, mp_policy=policy, reshard_after_forward=True)
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
        for parameter in self._of_shard:
            parameter.grad = None

    def _shard(self, name: str, parameter: nn.Parameter, cut: Cut) -> Shard:
        local = local_of(parameter.data)
        row = math.prod(cut.local[1:])
        rows = -(-cut.local[0] // self.mesh.shard.size)  # as torch.chunk cuts
        first = min(self.mesh.shard.index * rows, cut.local[0])
        last = first + local.shape[0] if local.numel() else first
        return Shard(
            values=local.flatten() if local.is_contiguous() else local.reshape(-1),
            gradient=None,
            spans=((cut, first * row, last * row, 0),) if last > first else (),
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


def local_of(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_fully_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` holds the module's weights."""
    return isinstance(module, FSDPModule)
