"""A mixture of experts in the place of the MLP: a router, routed experts, and experts that every token visits.

There is no code for parallelism here. `ExpertLayer.visit` is a port: expert parallelism begins to send tokens to the ranks that hold
their experts.

In checkpoints the matrices of all experts of a layer are one tensor: `layers.3.mlp.experts.gate.weight` is [experts, width, hidden], as is
`up`, and `down` is [experts, hidden, width]; their biases are `layers.3.mlp.experts.gate.bias` [experts, width] and so on. The router is
`layers.3.mlp.router.weight` [experts, hidden], with `router.bias` or `router.selection_bias` [experts] if it has one. Shared experts
are one MLP, `layers.3.mlp.shared.gate.weight`. A rank holds gate and up of its experts as one parameter, expert after expert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, cast

import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.describe.model import Model
from meshwright.train.kernels.expert_gate import Groups, weighted_gate
from meshwright.train.kernels.grouped import GroupedLinear
from meshwright.train.kernels.layer_functions import Made, value_of
from meshwright.train.kernels.routes import collected, routes_to, spread, weights_of_copies
from meshwright.train.model.router import Choice, Scored, TokenRouter

PART = ".mlp.experts."  # in the name of every parameter of routed experts


def is_routed(name: str) -> bool:
    """Whether a parameter belongs to routed experts, of which expert parallelism gives each rank some."""
    return PART in name


def expert_dim(tensor: str) -> int:
    """The dimension of a tensor of routed experts along which ranks divide each expert: its columns, and those of the second bias."""
    return 2 if tensor.endswith(".down.weight") else 1


def expert_tensors(name: str, held: Tensor, model: Model, etp: int = 1) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a parameter of routed experts holds, each as a view [experts, ...] of its entries; `etp` ranks divide an expert."""
    assert model.experts is not None, "only a mixture of experts has such parameters"
    before, layer, kind = name.rsplit(".", 2)
    parts, width = (("gate", "up"), model.experts.hidden // etp) if layer == "gate_up" else ((layer,), model.hidden)
    if (layer, kind) == ("down", "bias"):
        width //= etp
    views = held.view(-1, len(parts), width, *held.shape[1:]).unbind(1)
    yield from ((f"{before}.{part}.{kind}", view) for part, view in zip(parts, views, strict=True))


class RoutedExperts(nn.Module):
    """The experts of a layer that a rank holds, each a gated MLP."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        experts = model.experts
        assert experts is not None, "a model without experts has none to build"
        self.limit = experts.activation_limit
        self.first_bias = 0  # the column of the first of an expert's last biases here; other parts of the expert have the others
        self.gate_up = GroupedLinear(experts.num_experts, model.hidden, 2 * experts.hidden, bias=model.biases)
        self.down = GroupedLinear(experts.num_experts, experts.hidden, model.hidden, bias=model.biases)

    def narrow(self, num_held: int, etp: int, part: int) -> None:
        """Reduce the experts (still without storage) to so many, and each to one of `etp` parts of its columns.

        The outputs of all parts together are those of the expert: each adds its part of the second bias.
        """
        width, hidden = self.down.weight.shape[1] // etp, self.down.num_out
        self.gate_up.num_out //= etp
        self.first_bias = part * (hidden // etp)
        shapes = {"gate_up.weight": (2 * width, hidden), "gate_up.bias": (2 * width,)}
        shapes |= {"down.weight": (hidden, width), "down.bias": (hidden // etp,)}
        for name, parameter in self.named_parameters():
            rows, *columns = shapes[name]
            parameter.data = parameter.data.new_empty((num_held * rows, *columns))

    @property
    def num_held(self) -> int:
        """Number of experts that are here."""
        return self.down.weight.shape[0] // self.down.num_out

    def forward(self, rows: Tensor, choice: Choice) -> Tensor:
        """For every row the weighted sum of what its experts here make of it. The host waits for nothing, unless visits are dropped.

        An expert that is not visited has no weight in a choice.
        """
        routes = routes_to(choice.experts, self.num_held, choice.num_visits)
        weights, bias = weights_of_copies(choice.weights, routes), self.gate_up.bias
        groups = None if bias is None else Groups(bias.view(self.num_held, -1), routes.counts)
        inner = weighted_gate(self.gate_up(spread(rows, routes), routes.counts), weights, self.limit, groups)
        made = collected(self.down(inner, routes.counts), routes)
        return made if self.down.bias is None else made + self.weighted_biases(self.down.bias, choice).to(made.dtype)

    def weighted_biases(self, bias: Tensor, choice: Choice) -> Tensor:
        """For every row the last biases of its experts times their weights, in fp32; zeros where other parts of an expert have them."""
        weights = choice.weights.new_zeros(len(choice.weights), self.num_held)
        weights = weights.scatter_add(1, choice.experts.clamp(min=0), choice.weights)
        held = weights @ bias.view(self.num_held, -1).to(weights.dtype)
        after = self.down.num_out - self.first_bias - held.shape[1]
        return F.pad(held, (self.first_bias, after)) if held.shape[1] < self.down.num_out else held


def visit(rows: Tensor, choice: Choice, experts: RoutedExperts) -> Tensor:
    """For every row the weighted sum of what its experts here make of it."""
    made: Tensor = experts(rows, choice)
    return made


def visit_here(rows: Tensor, choice: Choice, experts: RoutedExperts) -> Callable[[], Tensor]:
    """A function that gives the same: nothing has to be waited for where all experts are here."""
    return lambda: visit(rows, choice, experts)


class SharedExperts(Protocol):
    """Experts that every token visits, as one MLP, in two parts: the one after its products may wait for other ranks."""

    def products(self, x: Tensor | Made) -> Tensor:
        """The outputs of the MLP as its products leave them."""

    def finished(self, narrow: Tensor) -> Tensor:
        """The output of the MLP from that of its products."""


class ExpertLayer(nn.Module):
    """The feed-forward half of a block whose tokens visit experts. The products of shared experts are computed while tokens travel."""

    def __init__(self, model: Model, shared: nn.Module | None) -> None:
        super().__init__()
        assert model.experts is not None, "a model without experts has an MLP here"
        self.router = TokenRouter(model.hidden, model.experts)
        self.experts = RoutedExperts(model)
        self.shared = shared
        self.products: Callable[[Tensor | Made], Tensor] | None = None  # those of shared experts, if they are compiled
        self.visit: Callable[[Tensor, Choice, RoutedExperts], Callable[[], Tensor]] = visit_here

    def forward(self, x: Tensor | Made) -> Tensor:
        return self.visited(x, self.router.scored(value_of(x)))

    def visited(self, x: Tensor | Made, scored: Scored) -> Tensor:
        """The output, from hidden states and what the router made of them."""
        rows, shared = value_of(x), cast(SharedExperts | None, self.shared)
        arrives = self.visit(rows.flatten(0, 1), self.router.choice(scored), self.experts)
        narrow = None if shared is None else (self.products or shared.products)(x)
        made = arrives().view_as(rows)
        return made if shared is None or narrow is None else made + shared.finished(narrow)
