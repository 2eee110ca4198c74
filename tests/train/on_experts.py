"""What tests run on gloo ranks to see tokens visit experts on other ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from parity import Steps, run_steps

from meshwright.describe.model import Experts, Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout
from meshwright.train.kernels.routes import NOWHERE
from meshwright.train.model.experts import RoutedExperts, visit_here
from meshwright.train.model.router import Choice
from meshwright.train.parallel.expert import Visit
from meshwright.train.parallel.mesh import make_mesh

MODEL = Model(
    name="visits",
    num_layers=1,
    hidden=6,
    ffn_hidden=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=4,
    vocab_size=8,
    biases=True,
    experts=Experts(num_experts=8, num_active=3, hidden=4),
)
Found = dict[str, torch.Tensor]


def experts_with_weights() -> RoutedExperts:
    """All experts, with the same random weights on every rank."""
    experts = RoutedExperts(MODEL)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return experts


def here_and_there(choices: list[list[list[int]]]) -> tuple[Found, Found]:
    """Outputs and gradients where each rank's tokens visit experts on all ranks, and where all experts are here; of this rank's tokens.

    `choices`: for each rank the experts of its tokens.
    """
    mesh = make_mesh(Layout(dp=len(choices), ep=len(choices)), torch.device("cpu"), has_experts=True)
    axis = mesh.ep
    whole, held = experts_with_weights(), experts_with_weights()
    for parameter in held.parameters():
        parameter.data = parameter.data.chunk(axis.size)[axis.index].clone()
    mine = torch.tensor(choices[axis.index], dtype=torch.int64).view(-1, 3)
    there = _run(mine, axis.index, held, Visit(axis))
    here = _run(mine, axis.index, whole, visit_here)
    # A rank with all experts has the gradients of its own tokens only: over all ranks together they are those of the experts there.
    for name, parameter in whole.named_parameters():
        summed = axis.all_reduce(parameter.grad.clone())
        here[name] = summed.chunk(axis.size)[axis.index]
    there |= {name: parameter.grad for name, parameter in held.named_parameters()}
    mesh.close()
    return there, here


def _run(experts: torch.Tensor, rank: int, held: RoutedExperts, visit: object) -> Found:
    generator = torch.Generator().manual_seed(10 + rank)
    x = torch.randn(len(experts), MODEL.hidden, generator=generator).requires_grad_()
    weights = torch.rand(experts.shape, generator=generator).requires_grad_()
    out = visit(x, Choice(experts, torch.where(experts == NOWHERE, 0.0, weights)), held)()  # type: ignore[operator]
    out.backward(torch.randn(out.shape, generator=generator))
    assert x.grad is not None and weights.grad is not None
    return {"out": out.detach(), "x": x.grad, "weights": weights.grad}


def steps_with_rows_in_turn(model: Model, workload: Workload, layout: Layout, num_steps: int) -> Steps:
    """Steps in which nothing is computed while tokens travel: they have come back before the shared experts begin."""
    call = Visit.__call__

    def in_turn(self: Visit, rows: torch.Tensor, choice: Choice, experts: RoutedExperts) -> Callable[[], torch.Tensor]:
        made = call(self, rows, choice, experts)()
        return lambda: made

    Visit.__call__ = in_turn  # type: ignore[method-assign]
    try:
        return run_steps(model, workload, layout, num_steps)
    finally:
        Visit.__call__ = call  # type: ignore[method-assign]
