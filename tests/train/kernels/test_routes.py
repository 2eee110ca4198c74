from __future__ import annotations

import torch

from meshwright.train.kernels.routes import NOWHERE, collected, routes_to, spread, weights_of_copies

DESTINATIONS = torch.tensor([[2, 0], [0, NOWHERE], [NOWHERE, NOWHERE], [0, 2]])


def test_copies_are_sorted_by_destination_and_then_by_row() -> None:
    routes = routes_to(DESTINATIONS, 3)
    assert routes.counts.tolist() == [3, 0, 2]
    assert routes.rows.tolist() == [0, 1, 3, 0, 3]


def test_spread_and_collected_are_each_others_gradient() -> None:
    routes = routes_to(DESTINATIONS, 3, num_copies=5)
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    weights = torch.rand(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    out = collected(2 * spread(x, routes) * weights_of_copies(weights, routes)[:, None], routes)
    counted = torch.where(DESTINATIONS == NOWHERE, 0.0, weights).sum(1)
    assert torch.allclose(out, 2 * counted[:, None] * x, atol=1e-6)
    cotangent = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad(out, [x, weights], cotangent)
    wanted = torch.autograd.grad(2 * counted[:, None] * x, [x, weights], cotangent)
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, wanted, strict=True))


def test_a_copy_that_is_not_a_number_does_not_reach_other_rows() -> None:
    routes = routes_to(DESTINATIONS, 3)
    copies = torch.ones(5, 1)
    copies[-1] = torch.nan
    assert collected(copies, routes).isnan().flatten().tolist() == [False, False, False, True]


def test_rows_without_destinations_are_zero() -> None:
    routes = routes_to(torch.full((3, 2), NOWHERE), 4)
    assert collected(spread(torch.ones(3, 5), routes), routes).tolist() == [[0.0] * 5] * 3
