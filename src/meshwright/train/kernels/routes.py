"""Rows that are copied to several destinations, and what comes back from there added up for every row.

A row has a few slots, each with a destination or none: the experts that a token visits, or the ranks that it is sent to. Copies are sorted
by destination, and for one destination by row, so that sums are added in one order and do not depend on chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    @property
    def takes_all(self) -> bool:
        """Whether every slot has a copy; known from shapes, so that the host waits for nothing."""
        return len(self.order) == self.positions.numel()

    def first(self, num_copies: int) -> Routes:
        """The same routes, of as many copies as there are: routes that were made for all slots may have more."""
        return Routes(self.order[:num_copies], self.positions, self.counts)


def routes_to(destinations: Tensor, num_destinations: int, num_copies: int | None = None) -> Routes:
    """The routes of rows to the `destinations` [rows, slots] of their slots.

    `num_copies`: how many slots have a destination, if the host knows it already; otherwise it waits for the device to learn it.
    """
    keys = torch.where(destinations == NOWHERE, num_destinations, destinations).flatten()
    order = torch.sort(keys, stable=True).indices
    positions = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    counts = torch.zeros(num_destinations + 1, dtype=torch.int64, device=keys.device)
    counts.scatter_add_(0, keys, torch.ones_like(keys))
    counts = counts[:num_destinations]
    found = int(counts.sum()) if num_copies is None else num_copies
    return Routes(order[:found], positions.view(destinations.shape), counts)


def spread(x: Tensor, routes: Routes) -> Tensor:
    """The copies of the rows of `x`, sorted by destination."""
    copies: Tensor = _Spread.apply(x, routes)
    return copies


def collected(copies: Tensor, routes: Routes, weights: Tensor | None = None) -> Tensor:
    """For every row the sum of its copies, times the `weights` [rows, slots] of its slots."""
    rows: Tensor = _Collected.apply(copies, weights, routes)
    return rows


def _sums(copies: Tensor, routes: Routes, weights: Tensor | None) -> Tensor:
    """Sums in fp32, slot after slot; what a slot without a destination points to does not count, whatever it is."""
    num_rows, num_slots = routes.positions.shape
    total = torch.zeros((num_rows, copies.shape[1]), dtype=torch.float32, device=copies.device)
    if not len(copies):
        return total.to(copies.dtype)
    for slot in range(num_slots):
        position = routes.positions[:, slot]
        rows = copies[position if routes.takes_all else position.clamp(max=len(copies) - 1)]
        if not routes.takes_all:
            rows = torch.where((position < len(copies))[:, None], rows, 0.0)
        if weights is None:
            total += rows
        else:
            total.addcmul_(rows, weights[:, slot, None])
    return total.to(copies.dtype)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, routes: Routes) -> Tensor:
        ctx.routes = routes
        return x[routes.rows]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _sums(gradient, ctx.routes, None), None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, copies: Tensor, weights: Tensor | None, routes: Routes) -> Tensor:
        ctx.routes = routes
        ctx.save_for_backward(*((copies, weights) if weights is not None else ()))
        return _sums(copies, routes, weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        routes = ctx.routes
        of_copies = gradient[routes.rows]
        saved = ctx.saved_tensors
        if not saved:
            return of_copies, None, None
        copies, weights = saved
        d_weights = torch.zeros_like(weights).flatten()
        d_weights[routes.order] = (of_copies.float() * copies.float()).sum(dim=-1).to(weights.dtype)
        scaled = of_copies.float() * weights.flatten()[routes.order, None]
        return scaled.to(copies.dtype), d_weights.view_as(weights), None
