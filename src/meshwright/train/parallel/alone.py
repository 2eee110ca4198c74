"""A rank without replicas: each parameter is its own shard, and gradients stay where the backward pass put them."""

from __future__ import annotations

import torch
from torch import nn

from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.buckets import Numbers, put_in_place
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.shards import Shard, cuts_of, has_padding, spans_of
from meshwright.train.parallel.tensor import decays, is_partial


class Alone:
    """The weights of one chunk if no other rank holds the same: nothing is reduced, gathered or copied."""

    loss_scale = 1.0

    def __init__(self, chunk: Transformer, mesh: Mesh, numbers: Numbers) -> None:
        cuts = cuts_of(chunk, mesh.tp, mesh.ep, mesh.layout.etp)
        self.parameters: list[nn.Parameter] = []
        self.shards: list[Shard] = []
        for name, old in list(chunk.trained_parameters()):
            make = torch.zeros if has_padding(cuts[name]) else torch.empty
            parameter = nn.Parameter(make(old.shape, dtype=numbers.compute, device=mesh.device))
            put_in_place(chunk, old, parameter)
            flat = parameter.data.view(-1)
            is_state = numbers.state == numbers.compute
            shard = Shard(
                values=flat if is_state else flat.to(numbers.state),
                copy=None if is_state else flat,
                gradient=None,
                spans=tuple(spans_of(cuts[name], 0, parameter.numel(), 0)),
                decays=decays(name, parameter),
                is_partial=is_partial(name) and mesh.tp.size > 1,
                copies=1,
            )
            self.parameters.append(parameter)
            self.shards.append(shard)

    def start(self) -> None:
        """Prepare for a new step."""
        self.forget()

    def add(self, parameter: nn.Parameter, gradient: torch.Tensor) -> None:
        """Add a gradient that was postponed."""
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def finish(self) -> None:
        """Give the gradients to the shards."""
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            shard.gradient = None if parameter.grad is None else parameter.grad.view(-1)

    def publish(self) -> None:
        """Does nothing: no other rank holds these weights."""

    def ready(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def before_forward(self) -> None:
        """Does nothing: there is nothing to wait for."""

    def forget(self) -> None:
        """Drop the gradients."""
        for parameter, shard in zip(self.parameters, self.shards, strict=True):
            parameter.grad, shard.gradient = None, None
