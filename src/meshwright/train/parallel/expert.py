"""Expert parallelism: each rank of a group holds some experts, and tokens are sent to the ranks whose experts they chose.

The group consists of ranks of one pipeline stage, whichever of dp, cp and tp they differ in: each has other tokens. A token is sent once to
a rank, however many of its experts are there. That rank adds up what its experts make of the token, with the token's weights, and
sends back one row. How many rows go where is known only once tokens have chosen, so the host waits for these numbers, once for each layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meshwright.train.kernels.routes import NOWHERE, collected, routes_to, spread
from meshwright.train.model.experts import ExpertLayer, RoutedExperts, is_routed, visit
from meshwright.train.model.router import Choice
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.collectives import Axis, RowExchange
from meshwright.train.parallel.mesh import Mesh


def split(chunk: Transformer, mesh: Mesh) -> None:
    """Reduce the experts of a chunk (still without storage) to those of this rank, and connect the axes to the ports."""
    for name, parameter in chunk.named_parameters():
        if is_routed(name):
            parameter.data = parameter.data.new_empty((parameter.shape[0] // mesh.ep.size, *parameter.shape[1:]))
    for module in chunk.modules():
        if isinstance(module, ExpertLayer):
            module.router.num_parts = mesh.tp.size * mesh.cp.size
            module.router.add_parts = SequenceSum(mesh.tp, mesh.cp)
            if mesh.ep.size > 1:
                module.visit = Visit(mesh.ep)


class SequenceSum:
    """Sums over the ranks that hold parts of the same sequences."""

    def __init__(self, tp: Axis, cp: Axis) -> None:
        self.axes = (tp, cp)

    @torch.no_grad()
    def __call__(self, counts: Tensor) -> Tensor:
        for axis in self.axes:
            counts = axis.all_reduce(counts)
        return counts


class Visit:
    """Sends tokens to the ranks of their experts; the function that is returned waits for them, and gives what comes back."""

    def __init__(self, axis: Axis) -> None:
        self.axis = axis

    def __call__(self, rows: Tensor, choice: Choice, experts: RoutedExperts) -> Callable[[], Tensor]:
        axis, num_held = self.axis, experts.num_held
        ranks = torch.where(choice.experts == NOWHERE, NOWHERE, choice.experts // num_held)
        leaving = routes_to(once(ranks), axis.size, ranks.numel())
        visits = torch.zeros_like(leaving.counts).scatter_add_(0, ranks.clamp(min=0).flatten(), (ranks != NOWHERE).long().flatten())
        numbers = torch.stack((leaving.counts, visits), dim=1)
        coming = axis.all_to_all(numbers)
        sent, received, num_visits = _on_host(leaving.counts, coming)
        leaving = leaving.first(sum(sent))
        there = torch.arange(axis.size, device=rows.device).repeat_interleave(leaving.counts, output_size=sum(sent))
        is_there = ranks[leaving.rows] == there[:, None]
        local = torch.where(is_there, choice.experts[leaving.rows] - there[:, None] * num_held, NOWHERE)
        weights = torch.where(is_there, spread(choice.weights, leaving), 0.0)
        labelling, going = RowExchange(axis, sent, received), RowExchange(axis, sent, received)
        labels = labelling.leave(torch.cat((weights, local.to(weights.dtype)), dim=1))
        arriving = going.leave(spread(rows, leaving))

        def end() -> Tensor:
            their_weights, their_experts = labelling.arrived(labels).chunk(2, dim=1)
            visitors = Choice(their_experts.detach().long(), their_weights, num_visits)
            made = visit(going.arrived(arriving), visitors, experts)
            returning = RowExchange(axis, received, sent)
            return collected(returning.arrived(returning.leave(made)), leaving)

        return end


def once(ranks: Tensor) -> Tensor:
    """The ranks that a token is sent to, each once; [tokens, active]."""
    earlier = torch.ones(ranks.shape[1], ranks.shape[1], dtype=torch.bool, device=ranks.device).tril(-1)
    repeats = (ranks[:, :, None] == ranks[:, None, :]) & earlier
    return torch.where(repeats.any(-1), NOWHERE, ranks)


def _on_host(leaving: Tensor, coming: Tensor) -> tuple[list[int], list[int], int]:
    """How many rows this rank sends to each and gets from each, and how many visits these want; waits for the device once."""
    sent, received, visits = torch.cat((leaving[:, None], coming), dim=1).T.tolist()
    return sent, received, sum(visits)
