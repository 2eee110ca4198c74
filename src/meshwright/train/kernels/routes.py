"""Rows that are copied to several destinations, and what comes back from there added up for every row.

A row has a few slots, each with a destination or none: the experts that a token visits, or the ranks that it is sent to. Copies are sorted
by destination, and for one destination by row, so that sums are added in one order and do not depend on chance.

Each step is one pass on a GPU that has kernels for it, and plain operations on a processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.train.kernels.layer_functions import HAS_KERNELS

if HAS_KERNELS:
    from meshwright.train.kernels import route_kernels

NOWHERE = -1  # the destination of a slot that is not used


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """Which copy of which row goes where."""

    order: Tensor  # [copies]: the slots in order of their destinations, counted row after row
    positions: Tensor  # [rows, slots]: which copy a slot has; the number of copies or more: none
    counts: Tensor  # [destinations]: how many copies go to each

    @property
    def rows(self) -> Tensor:
        """The row that each copy is of."""
        return self.order // self.positions.shape[1]

    def first(self, num_copies: int) -> Routes:
        """The same routes, of as many copies as there are: routes that were made for all slots may have more."""
        return Routes(self.order[:num_copies], self.positions, self.counts)


def routes_to(destinations: Tensor, num_destinations: int, num_copies: int | None = None) -> Routes:
    """The routes of rows to the `destinations` [rows, slots] of their slots.

    `num_copies`: how many slots have a destination, if the host knows it already; otherwise it waits for the device to learn it.
    """
    keys = destinations.flatten()
    if HAS_KERNELS and keys.is_cuda:
        order, positions, counts = route_kernels.placed(keys.contiguous(), num_destinations)
    else:
        order, positions, counts = _placed(keys, num_destinations)
    found = int(counts.sum()) if num_copies is None else num_copies
    return Routes(order[:found], positions.view(destinations.shape), counts)


def _placed(keys: Tensor, num_destinations: int) -> tuple[Tensor, Tensor, Tensor]:
    keys = torch.where(keys == NOWHERE, num_destinations, keys)
    order = torch.sort(keys, stable=True).indices
    positions = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    counts = torch.zeros(num_destinations + 1, dtype=torch.int64, device=keys.device)
    counts.scatter_add_(0, keys, torch.ones_like(keys))
    return order, positions, counts[:num_destinations]


def spread(x: Tensor, routes: Routes) -> Tensor:
    """The copies of the rows of `x`, sorted by destination."""
    copies: Tensor = _Spread.apply(x, routes)
    return copies


def collected(copies: Tensor, routes: Routes) -> Tensor:
    """For every row the sum of its copies."""
    rows: Tensor = _Collected.apply(copies, routes)
    return rows


def weights_of_copies(weights: Tensor, routes: Routes) -> Tensor:
    """The weight of every copy, from those of the slots [rows, slots]."""
    found: Tensor = _WeightsOfCopies.apply(weights, routes)
    return found


def _copies(x: Tensor, routes: Routes) -> Tensor:
    if HAS_KERNELS and x.is_cuda:
        return route_kernels.copied_rows(x.contiguous(), routes.order, routes.positions.shape[1])
    return x[routes.rows]


def _sums(copies: Tensor, routes: Routes) -> Tensor:
    """Sums in fp32, slot after slot; what a slot without a destination points to does not count, whatever it is."""
    if HAS_KERNELS and copies.is_cuda:
        return route_kernels.summed_rows(copies.contiguous(), routes.positions)
    num_rows, num_slots = routes.positions.shape
    total = torch.zeros((num_rows, copies.shape[1]), dtype=torch.float32, device=copies.device)
    for slot in range(num_slots if len(copies) else 0):
        total += _of_slots(copies, routes.positions[:, slot])
    return total.to(copies.dtype)


def _of_slots(copies: Tensor, positions: Tensor) -> Tensor:
    """What the copies at these positions have; zeros for a position that has none."""
    found = copies[positions.clamp(max=len(copies) - 1)]
    return torch.where((positions < len(copies)).view(-1, *(1 for _ in copies.shape[1:])), found, 0.0)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return _copies(x, routes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sums(gradient, ctx.routes), None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, copies: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return _sums(copies, routes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _copies(gradient, ctx.routes), None


class _WeightsOfCopies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return weights.flatten()[routes.order]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        positions = ctx.routes.positions
        if not len(gradient):
            return gradient.new_zeros(positions.shape), None
        return _of_slots(gradient, positions.flatten()).view(positions.shape), None
