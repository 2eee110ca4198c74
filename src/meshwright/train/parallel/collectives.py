"""Collectives of one axis, timed and marked, and pairs of collectives that are each other's gradient.

All of them call torch.distributed. In addition, the axis that waits is named, for the record of exposed time and for the watchdog.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.timing import Timer

# torch 2.13 has new names for these two; 2.11 has only the old ones.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """This rank's group on one axis of the mesh."""

    name: str
    ranks: tuple[int, ...]  # global ranks, by position
    index: int  # this rank's position
    group: dist.ProcessGroup | None  # None: nothing is exchanged on the axis
    timer: Timer
    marks: Marks
    device: torch.device

    @property
    def size(self) -> int:
        """Ranks on the axis."""
        return len(self.ranks)

    def wait(self, work: dist.Work | None, what: str) -> None:
        """Wait for a collective; the remaining time counts as exposed time of this axis."""
        if work is None:
            return
        self.marks.enter(what, self.name, self.ranks)
        with self.timer.part(f"exposed_{self.name}"):
            work.wait()
        self.marks.leave()

    def all_gather(self, local: Tensor, dim: int) -> Tensor:
        """The tensors of all ranks, one after another along `dim`."""
        return self.start_all_gather(local, dim)()

    def start_all_gather(self, local: Tensor, dim: int) -> Callable[[], Tensor]:
        """Begin to gather; the function that is returned waits for the end and gives the result."""
        if self.size == 1:
            return lambda: local
        gathered, local = local.new_empty((self.size, *local.shape)), local.contiguous()
        work = all_gather_single(gathered.view(-1), local.view(-1), group=self.group, async_op=True)

        def end() -> Tensor:
            self.wait(work, "all-gather")
            return gathered.movedim(0, dim).flatten(dim, dim + 1)

        return end

    def reduce_scatter(self, whole: Tensor, dim: int) -> Tensor:
        """The sum of the tensors of all ranks; each rank keeps its part along `dim`."""
        return self.start_reduce_scatter(whole, dim)()

    def start_reduce_scatter(self, whole: Tensor, dim: int) -> Callable[[], Tensor]:
        """Begin to sum and scatter; the function that is returned waits for the end and gives the result."""
        if self.size == 1:
            return lambda: whole
        parts = whole.unflatten(dim, (self.size, -1)).movedim(dim, 0).contiguous()
        local = torch.empty_like(parts[0])
        work = reduce_scatter_single(local.view(-1), parts.view(-1), group=self.group, async_op=True)

        def end() -> Tensor:
            self.wait(work, "reduce-scatter")
            return local

        return end

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """The sum (or another `op`) of the tensors of all ranks, in place."""
        if self.size > 1:
            self.wait(dist.all_reduce(tensor, op=op, group=self.group, async_op=True), "all-reduce")
        return tensor

    def all_to_all(self, parts: Tensor) -> Tensor:
        """The parts that all ranks have for this one: entry `i` of the result is entry `index` of rank `i`."""
        if self.size == 1:
            return parts
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        self.wait(dist.all_to_all_single(received, parts, group=self.group, async_op=True), "all-to-all")
        return received

    def start_exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> tuple[Tensor, dist.Work | None]:
        """Begin to send `sent[i]` rows to rank `i`, one rank's after another's: where the rows of all ranks for this one arrive, and what
        to wait for."""
        if self.size == 1:
            return rows, None
        arriving = rows.new_empty((sum(received), *rows.shape[1:]))
        work = dist.all_to_all_single(arriving, rows.contiguous(), list(received), list(sent), group=self.group, async_op=True)
        return arriving, work


def everyones_texts(text: str, most_bytes: int, device: torch.device) -> list[str]:
    """The texts of all ranks, by rank. All ranks must call it. A text longer than `most_bytes` is cut."""
    padded = text.encode()[:most_bytes].ljust(most_bytes)
    mine = torch.frombuffer(bytearray(padded), dtype=torch.uint8).to(device)
    everyones = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, mine)
    return [bytes(entry.tolist()).decode(errors="ignore").strip() for entry in everyones]


def everyones_whole_texts(text: str, device: torch.device) -> list[str]:
    """The texts of all ranks, by rank, however long they are. All ranks must call it."""
    size = torch.tensor([len(text.encode())], device=device)
    sizes = [torch.empty_like(size) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, size)
    return everyones_texts(text, max(int(one) for one in sizes), device)


class Gather(torch.autograd.Function):
    """All-gather along a dimension, for a tensor that every rank uses differently: its gradients are summed and scattered."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        return axis.all_gather(local, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.axis.reduce_scatter(gradient, ctx.dim), None, None


class ScatterSum(torch.autograd.Function):
    """Reduce-scatter of partial sums along a dimension: its gradient is gathered."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, axis: Axis, dim: int) -> Tensor:
        ctx.axis, ctx.dim = axis, dim
        return axis.reduce_scatter(partial, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.axis.all_gather(gradient, ctx.dim), None, None


class Exchange(torch.autograd.Function):
    """All-to-all of equal parts along the first dimension; its gradient is sent back in the same way."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return axis.all_to_all(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.axis.all_to_all(gradient), None


class RowExchange:
    """An all-to-all of rows, of which every rank has another number for every other: `leave` begins it, and `arrived` waits for its end.

    Gradients are sent back in the same way. They leave in the backward pass of `arrived` and are there after that of `leave`, and what the
    forward pass computed between the two calls goes backward between these: autograd takes what is ready in the reverse of the order in
    which it was made. Between the two, autograd has a stand-in without content, so nothing but `arrived` may use what `leave` returns.
    """

    def __init__(self, axis: Axis, sent: Sequence[int], received: Sequence[int]) -> None:
        self.axis, self.sent, self.received = axis, sent, received
        self.arriving: Tensor | None = None
        self._work: dist.Work | None = None

    def leave(self, rows: Tensor) -> Tensor:
        """Begin to send rows to all ranks; for `arrived`."""
        stand_in: Tensor = _Leave.apply(rows, self)
        return stand_in

    def arrived(self, stand_in: Tensor) -> Tensor:
        """The rows that all ranks had for this one, rank after rank."""
        rows: Tensor = _Arrived.apply(stand_in, self)
        return rows

    def begin(self, rows: Tensor, *, back: bool) -> Tensor:
        """Begin to send rows, or gradients of those that arrived; where they arrive."""
        assert self._work is None, "an exchange ends before the next one begins"
        sent, received = (self.received, self.sent) if back else (self.sent, self.received)
        arriving, self._work = self.axis.start_exchange(rows, sent, received)
        return arriving

    def end(self) -> None:
        """Wait until what was begun is there."""
        self.axis.wait(self._work, "all-to-all of tokens")
        self._work = None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        exchange.arriving = exchange.begin(rows, back=False)
        return rows.new_empty(1).expand(rows.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.exchange.end()
        return gradient, None


class _Arrived(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stand_in: Tensor, exchange: RowExchange) -> Tensor:
        ctx.exchange = exchange
        exchange.end()
        arrived, exchange.arriving = exchange.arriving, None
        assert arrived is not None, "rows leave before they arrive"
        return arrived

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.exchange.begin(gradient, back=True), None
