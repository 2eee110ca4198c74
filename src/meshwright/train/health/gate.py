"""Which steps are applied: a step that is not believed leaves the weights as they are, and is done again (`train.replay`).

A step is not believed if its loss or its norm is NaN or infinite, if the sum over replicas is not what was sent, if its loss is far above
the last losses, or if its gradients, or one of them, are far larger than usual. What is usual follows from the last steps. On a GPU a step
is launched before the result of the step before it is read, so its limits do not include that one; the comparison is made on the device.

A large gradient that was confirmed by doing the step again is no error of the machine. The next `QUIET_STEPS` steps are then not done again
for their gradients alone, so that data with large gradients cost at most one step in so many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from meshwright.errors import MeshwrightError
from meshwright.train.health.damage import Comparison, SumTest
from meshwright.train.health.idle_experts import IdleExperts
from meshwright.train.health.spikes import Losses, Peaks, Spikes
from meshwright.train.sums import CHECKS_FROM, Check, StepResult

QUIET_STEPS = 400  # 0.25 % of the steps
PEAK = CHECKS_FROM + Check._fields.index("peak")  # column of a rank's row


class Unsound(MeshwrightError):
    """A step that cannot be applied. All ranks raise it."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a step is not believed."""

    kind: str  # nan, sum, state, loss, norm or peak
    ranks: tuple[int, ...]  # where it is seen; empty: not known
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The limits of one step. It is a `sums.Gate`."""

    step: int
    comparison: Comparison
    loss: float = math.inf
    norm: float = math.inf
    peaks: tuple[float, ...] = ()  # by rank; empty: no limit
    test: SumTest | None = None  # on the device, where results are read late

    def passes(self, result: StepResult) -> bool:
        """Whether a step that gave this result is applied."""
        return self.trouble(result) is None

    def trouble(self, result: StepResult) -> Trouble | None:
        """Why a step that gave this result is not applied; None if it is. All ranks get the same answer."""
        if not result.is_finite:
            which = "loss" if not math.isfinite(result.loss) else "gradient norm"
            return Trouble("nan", (), f"the {which} of step {self.step} is NaN or infinite")
        if damage := self.comparison.damage(self.step, result):
            return Trouble(damage.what, damage.ranks, damage.message)
        if result.loss > self.loss:
            return Trouble("loss", (), f"the loss of step {self.step} is {result.loss:.4g}, and the limit is {self.loss:.4g}")
        high = tuple(rank for rank, (check, limit) in enumerate(zip(result.checks, self.peaks, strict=False)) if check.peak > limit)
        if high:
            return Trouble("peak", high, f"a gradient of step {self.step} on rank {high[0]} is far larger than usual")
        if result.grad_norm > self.norm:
            return Trouble("norm", (), f"the gradient norm of step {self.step} is {result.grad_norm:.3g}, and the limit is {self.norm:.3g}")
        return None

    def is_closed(self, loss: Tensor, norm: Tensor, rows: Tensor) -> Tensor:
        """The same on the device, from the sums of the step; nothing waits for the host."""
        closed = (loss > self.loss) | (norm > self.norm)
        if self.peaks:
            limits = torch.tensor(self.peaks, dtype=rows.dtype, pin_memory=rows.is_cuda).to(rows.device, non_blocking=True)
            closed = closed | (rows[:, PEAK] > limits).any()
        return closed | self.test.is_wrong(rows) if self.test is not None else closed


@dataclass(slots=True, kw_only=True)
class Guard:
    """What the last steps were like, and so which next step is believed."""

    comparison: Comparison
    losses: Losses
    spikes: Spikes = field(default_factory=Spikes)
    peaks: Peaks = field(default_factory=Peaks)
    test: SumTest | None = None
    idle: IdleExperts = field(default_factory=IdleExperts)
    _quiet_until: int = 0

    def gate(self, step: int) -> Gate:
        """The limits of a step that is about to be taken."""
        if step <= self._quiet_until:
            return Gate(step=step, comparison=self.comparison, loss=self.losses.limit(), test=self.test)
        return Gate(
            step=step,
            comparison=self.comparison,
            loss=self.losses.limit(),
            norm=self.spikes.limit(),
            peaks=self.peaks.limits(),
            test=self.test,
        )

    def confirmed(self, step: int) -> None:
        """Note that large gradients of a step were the same when it was done again."""
        self._quiet_until = step + QUIET_STEPS
