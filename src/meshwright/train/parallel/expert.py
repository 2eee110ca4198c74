"""Expert parallelism: each rank of a group holds some experts, and tokens are sent to the ranks whose experts they chose.

The group consists of ranks of one pipeline stage, whichever of dp, cp and tp they differ in: each has other tokens. A token is sent once to
a rank, however many of its experts are there. That rank adds up what its experts make of the token, with the token's weights, and
sends back one row. How many rows go where is known only once tokens have chosen, so the host waits for these numbers, once for each layer.

With etp > 1, neighbours in the group have parts of the same experts. A token is sent to all of them, and what returns from them is added up
like what different experts made of it.

While tokens are on their way, a layer computes its shared experts; its backward pass does so while the gradients of tokens are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from meshwright.train.kernels.routes import NOWHERE, collected, routes_to, spread
from meshwright.train.model.experts import ExpertLayer, RoutedExperts, visit
from meshwright.train.model.router import Choice
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.collectives import Axis, RowExchange
from meshwright.train.parallel.mesh import Mesh


def split(chunk: Transformer, mesh: Mesh) -> None:
    """Reduce the experts of a chunk (still without storage) to those of this rank, and connect the axes to the ports."""
    ep, etp = mesh.layout.ep, mesh.layout.etp
    for module in chunk.modules():
        if isinstance(module, ExpertLayer):
            module.experts.narrow(module.experts.num_held // ep, etp, mesh.ep.index % etp)
            module.router.num_parts = mesh.tp.size * mesh.cp.size
            module.router.add_parts = SequenceSum(mesh.tp, mesh.cp)
            if mesh.ep.size > 1:
                module.visit = Visit(mesh.ep, etp)


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

    def __init__(self, axis: Axis, etp: int = 1) -> None:
        self.axis, self.etp = axis, etp

    def __call__(self, rows: Tensor, choice: Choice, experts: RoutedExperts) -> Callable[[], Tensor]:
        axis, etp, num_held = self.axis, self.etp, experts.num_held
        places = torch.where(choice.experts == NOWHERE, NOWHERE, choice.experts // num_held)  # each of `etp` ranks
        leaving = routes_to(in_parts(once(places), etp), axis.size, places.numel() * etp)
        visits = places.new_zeros(axis.size // etp).scatter_add_(0, places.clamp(min=0).flatten(), (places != NOWHERE).long().flatten())
        numbers = torch.stack((leaving.counts, visits.repeat_interleave(etp)), dim=1)
        coming = axis.all_to_all(numbers)
        sent, received, num_visits = _on_host(leaving.counts, coming)
        leaving = leaving.first(sum(sent))
        there = (torch.arange(axis.size, device=rows.device) // etp).repeat_interleave(leaving.counts, output_size=sum(sent))
        is_there = places[leaving.rows] == there[:, None]
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


def once(places: Tensor) -> Tensor:
    """The places that a token is sent to, each once; [tokens, active]."""
    earlier = torch.ones(places.shape[1], places.shape[1], dtype=torch.bool, device=places.device).tril(-1)
    repeats = (places[:, :, None] == places[:, None, :]) & earlier
    return torch.where(repeats.any(-1), NOWHERE, places)


def in_parts(places: Tensor, etp: int) -> Tensor:
    """The ranks of such places, `etp` neighbours each; [tokens, active x etp]."""
    ranks = places[..., None] * etp + torch.arange(etp, device=places.device)
    return torch.where(places[..., None] == NOWHERE, NOWHERE, ranks).flatten(1)


def _on_host(leaving: Tensor, coming: Tensor) -> tuple[list[int], list[int], int]:
    """How many rows this rank sends to each and gets from each, and how many visits these want; waits for the device once."""
    sent, received, visits = torch.cat((leaving[:, None], coming), dim=1).T.tolist()
    return sent, received, sum(visits)
