"""The results of a step over all ranks, summed in one message: loss, tokens, squares of gradients, and values of single ranks.

On a GPU the sums arrive while the host already works on the next step. Nothing waits for them: the update computes its scale from them on
the device, and does not change the weights if they are NaN or infinite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from meshwright.errors import InputError
from meshwright.train.parallel.marks import Marks
from meshwright.train.parallel.mesh import Mesh

NUM_SUMS = 7  # loss, tokens, squares of gradients, wishes to stop, to save and to change the replicas, tokens predicted correctly
CHECKS_FROM = 2  # column of a rank's row from which on it has the fields of `Check`
NUM_OWN = 6  # for each rank: the squares of its own gradients, its own loss, and the fields of `Check`


class Check(NamedTuple):
    """Numbers of one rank that show damaged data: see `health.damage`. They are zero if they are not known."""

    digest: float  # of a part of the state that all replicas hold alike
    sent: float  # sum of its gradients before replicas are summed
    received: float  # sum of the gradients that it received
    peak: float  # by how many times a gradient of it stands out more than usual in its bucket, before replicas are summed


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of one step, over all ranks."""

    loss: float  # per token that has a loss
    grad_norm: float
    num_tokens: int  # that have a loss
    stops: bool = False  # whether any rank was asked to stop
    own_norms: tuple[float, ...] = ()  # of each rank's gradients before replicas are summed; 0 if unknown (ZeRO 3)
    own_losses: tuple[float, ...] = ()  # summed on each rank; 0 if a rank computes no loss
    saves: bool = False  # whether a checkpoint is due according to rank 0's clock
    checks: tuple[Check, ...] = ()  # of each rank
    changes: bool = False  # whether replicas are to join or leave after this step

    @property
    def is_finite(self) -> bool:
        """Whether loss and gradients are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


@dataclass(frozen=True, slots=True)
class Graded:
    """The result of an evaluation, over all ranks."""

    loss: float  # summed
    num_tokens: int
    num_correct: int | None = None  # tokens that were the most probable; None: not counted

    @property
    def mean_loss(self) -> float:
        """Loss per token."""
        return self.loss / max(self.num_tokens, 1)

    @property
    def accuracy(self) -> float | None:
        """Share of tokens that were the most probable; None: not counted."""
        return None if self.num_correct is None else self.num_correct / max(self.num_tokens, 1)


class Rider(Protocol):
    """Numbers of every rank that are sent with a sum: each rank has a row that the others leave at zero."""

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers of this rank."""
        ...

    def arrive(self, everyones: Tensor) -> None:
        """Receive the numbers of all ranks."""


class Gate(Protocol):
    """Which steps are applied: a step that does not pass leaves the weights as they are."""

    def passes(self, result: StepResult) -> bool:
        """Whether a result that has been read may be applied."""
        ...

    def is_closed(self, loss: Tensor, norm: Tensor, rows: Tensor) -> Tensor:
        """Whether a step may not be applied, on the device: its loss per token, its norm, and the rows of all ranks (`NUM_OWN`)."""
        ...


@dataclass(slots=True, eq=False)
class Sums:
    """The sums of one step: on the device, and being copied to the host."""

    totals: Tensor  # on the device
    here: Tensor  # on the host, valid after the event `arrived`
    arrived: torch.cuda.Event | None  # None: they have arrived
    nominal: int  # tokens that the loss was divided by
    num_ranks: int
    rider: Rider | None
    marks: Marks
    num_routed: int = 0  # of the last numbers, which routers counted
    is_cut: Callable[[], bool] = bool  # whether this rank was cut off from the others
    _values: list[float] | None = None

    def values(self) -> list[float]:
        """Loss, tokens, squares of gradients, wishes to stop, save or change the replicas, and correct tokens; waits for the device."""
        if self._values is None:
            if self.arrived is not None:
                self.marks.enter("sum of loss and norm", "world", range(self.num_ranks))
                self.arrived.synchronize()
                self.marks.leave()
                if self.is_cut():  # communicators that are aborted end as if all were well, and leave anything in their buffers
                    raise RuntimeError("the sums of this step may not have arrived: the connections to other ranks were cut")
            self._values = self.here[:NUM_SUMS].tolist()
            if self.rider:
                self.rider.arrive(
                    self.here[NUM_SUMS + NUM_OWN * self.num_ranks : len(self.here) - self.num_routed].view(self.num_ranks, -1)
                )
        return self._values

    @property
    def routed(self) -> Tensor:
        """What routers counted, on the device."""
        return self.totals[len(self.totals) - self.num_routed :]

    def routed_here(self) -> Tensor:
        """What routers counted, on the host; waits for the device."""
        self.values()
        return self.here[len(self.here) - self.num_routed :]

    def result(self) -> StepResult:
        """The result of the step; waits for the device."""
        result = result_of(self.values(), self.nominal)
        scale = self.nominal / result.num_tokens
        own = self.here[NUM_SUMS : NUM_SUMS + NUM_OWN * self.num_ranks].view(-1, NUM_OWN).tolist()
        return replace(
            result,
            own_norms=tuple(math.sqrt(squares) * scale for squares, *_ in own),
            own_losses=tuple(loss for _, loss, *_ in own),
            checks=tuple(Check(digest, sent * scale, received * scale, peak) for _, _, digest, sent, received, peak in own),
        )

    def scale(self, clip_norm: float, halted: Tensor, gate: Gate | None = None) -> Tensor:
        """The factor on gradients in the update, the same as `update_scale`, computed on the device.

        If loss or gradients are not finite, or do not pass the gate, the factor is NaN and `halted` is set: then the factors of all later
        steps are NaN too.
        """
        loss, tokens, squares = self.totals[0], self.totals[1].round(), self.totals[2]
        per_token = self.nominal / tokens
        norm = squares.sqrt() * per_token
        halted.logical_or_(~(torch.isfinite(loss) & torch.isfinite(norm) & (tokens > 0)))
        if gate is not None:
            rows = self.totals[NUM_SUMS : NUM_SUMS + NUM_OWN * self.num_ranks].view(-1, NUM_OWN)
            halted.logical_or_(gate.is_closed(loss / tokens, norm, rows))
        clipped = per_token * (clip_norm / norm).clamp(max=1.0) if clip_norm else per_token
        return torch.where(halted, torch.full_like(clipped, math.nan), clipped).float()


def result_of(sums: Sequence[float], nominal: int) -> StepResult:
    """The result of a step by its sums over all ranks, without the values of single ranks."""
    loss, tokens, total, stops, saves, changes, _ = sums
    num_tokens = round(tokens) if math.isfinite(tokens) else 0
    if num_tokens == 0:
        raise InputError("no token of the batch carries loss", where="corpus", fix="use longer documents")
    return StepResult(
        loss=loss / num_tokens,
        grad_norm=math.sqrt(total) * (nominal / num_tokens),
        num_tokens=num_tokens,
        stops=stops > 0,
        saves=saves > 0,
        changes=changes > 0,
    )


def update_scale(result: StepResult, nominal: int, clip_norm: float) -> float:
    """The factor on gradients in the update: it replaces the nominal number of tokens that they were divided by, and clips them."""
    scale = nominal / result.num_tokens
    return scale * (clip_norm / result.grad_norm) if clip_norm and result.grad_norm > clip_norm else scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """This rank's share of a step's sums; the first three are on its device."""

    losses: Sequence[Tensor]  # of the micro-batches, on the last stage
    counted: Sequence[Tensor]  # tokens of each that have a loss
    squares: Tensor  # of its gradients; over all ranks together each element counts once
    own_squares: Tensor  # of its gradients before replicas are summed
    checks: Tensor | None = None  # the fields of `Check`
    routed: Tensor | None = None  # what its routers counted
    stops: bool = False
    saves: bool = False
    correct: Sequence[Tensor] = ()  # tokens of each micro-batch that are predicted correctly, where an evaluation counts them
    changes: bool = False


def send(own: Own, mesh: Mesh, nominal: int, rider: Rider | None = None) -> Sums:
    """Sum over all ranks, in one message; values of a single rank are in a row that the others leave at zero."""
    riding = rider.values if rider else ()
    is_gpu = mesh.device.type == "cuda"
    num_ranks = dist.get_world_size()
    num_routed = len(own.routed) if own.routed is not None else 0
    end = NUM_SUMS + (NUM_OWN + len(riding)) * num_ranks
    sent = torch.zeros(end + num_routed, dtype=torch.float64, pin_memory=is_gpu)
    sent[3], sent[4], sent[5] = float(own.stops), float(own.saves), float(own.changes)
    if rider:
        sent[NUM_SUMS + NUM_OWN * num_ranks : end].view(-1, len(riding))[mesh.rank] = torch.tensor(riding, dtype=torch.float64)
    totals = sent.to(mesh.device, non_blocking=True)  # a GPU still computes the backward, and all that follows is queued behind it
    rows = totals[NUM_SUMS : NUM_SUMS + NUM_OWN * num_ranks].view(-1, NUM_OWN)
    if own.losses:  # only on the last stage; all its tensor-parallel ranks have the same losses
        totals[0] = torch.stack([loss.double() for loss in own.losses]).sum() / mesh.tp.size
        totals[1] = torch.stack(list(own.counted)).sum() / mesh.tp.size
        rows[mesh.rank, 1] = totals[0]
    if own.correct:
        totals[6] = torch.stack(list(own.correct)).double().sum() / mesh.tp.size
    totals[2] = own.squares
    rows[mesh.rank, 0] = own.own_squares
    if own.checks is not None:
        rows[mesh.rank, CHECKS_FROM:] = own.checks
    if own.routed is not None:
        totals[end:] = own.routed
    mesh.marks.enter("sum of loss and norm", "world", range(num_ranks))
    with mesh.timer.part("wait_end"):
        dist.all_reduce(totals)
    mesh.marks.leave()
    if not is_gpu:
        return Sums(totals, totals, None, nominal, num_ranks, rider, mesh.marks, num_routed)
    here = torch.empty(totals.shape, dtype=totals.dtype, pin_memory=True)
    here.copy_(totals, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return Sums(totals, here, arrived, nominal, num_ranks, rider, mesh.marks, num_routed)
