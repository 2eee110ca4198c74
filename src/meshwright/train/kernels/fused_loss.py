"""Output projection and cross-entropy in one function: logits exist only for some rows at a time, and their gradient is computed at once.

The gradient of the loss with respect to logits is known in the forward pass, except for a factor. So each block of rows is projected,
scored and differentiated before the next one. With 128,256 classes and 8,192 tokens the logits alone would need 4 GB in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels import fp8

BLOCK_BYTES = 2**31  # of logits at a time
FP8_BLOCK_BYTES = 2**29  # the same in fp8, where rounded gradients are kept as well
ROW_MULTIPLE = 1024  # products of whole tiles are fastest


def summed_loss(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross-entropy summed over the tokens that have a loss."""
    return _blocked_loss(hidden_BTH, weight_VH, labels_BT, BLOCK_BYTES, Plain)


def summed_loss_in_fp8(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """The same with the three products in fp8."""
    return _blocked_loss(hidden_BTH, weight_VH, labels_BT, FP8_BLOCK_BYTES, Rounded)


@torch.no_grad()
def num_correct(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """Tokens with a loss whose label has the largest score."""
    hidden, labels = hidden_BTH.flatten(0, 1), labels_BT.flatten()
    rows = rows_at_once(weight_VH, BLOCK_BYTES)
    best = torch.cat([F.linear(part, weight_VH).argmax(dim=-1) for part in hidden.split(rows)])
    return ((best == labels) & (labels != IGNORED_LABEL)).sum()


def _blocked_loss(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor, block_bytes: int, kind: type[Products]) -> Tensor:
    rows = rows_at_once(weight_VH, block_bytes)
    loss: Tensor = _BlockedLoss.apply(hidden_BTH.flatten(0, 1), weight_VH, labels_BT.flatten(), rows, kind)
    return loss


def rows_at_once(weight_VH: Tensor, block_bytes: int) -> int:
    """Rows of a block of logits."""
    rows = max(block_bytes // (weight_VH.shape[0] * weight_VH.element_size()), 1)
    return rows - rows % ROW_MULTIPLE if rows > ROW_MULTIPLE else rows


class Products(Protocol):
    """The three products with the table: to logits, and from their gradient back to hidden states and to the table."""

    def __init__(self, hidden: Tensor, weight: Tensor, *, trains_table: bool) -> None: ...

    def logits(self, rows: slice) -> Tensor:
        """Scores of some rows."""

    def back(self, d_logits: Tensor, rows: slice) -> None:
        """Add the gradient of these rows' scores."""

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Gradients of hidden states and of the table, after all rows; None for a table that is not trained."""


class Plain:
    """Products in the number format of the table."""

    def __init__(self, hidden: Tensor, weight: Tensor, *, trains_table: bool) -> None:
        self.hidden, self.weight, self.trains_table = hidden, weight, trains_table
        self.d_hidden, self.d_weight = torch.empty_like(hidden), torch.empty(0)

    def logits(self, rows: slice) -> Tensor:
        """Scores of some rows."""
        return F.linear(self.hidden[rows], self.weight)

    def back(self, d_logits: Tensor, rows: slice) -> None:
        """Add the gradient of these rows' scores."""
        torch.mm(d_logits, self.weight, out=self.d_hidden[rows])
        if not self.trains_table:
            return
        if rows.start == 0:
            self.d_weight = d_logits.T @ self.hidden[rows]
        else:
            self.d_weight.addmm_(d_logits.T, self.hidden[rows])

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Gradients of hidden states and of the table."""
        return self.d_hidden, self.d_weight if self.trains_table else None


class Rounded:
    """Products in fp8. A gradient of logits is at most one, so its unit is known without a maximum.

    Rounded gradients of all rows are kept, transposed, for one product at the end: its sum over all tokens has more bits than a sum of
    blocks would have.
    """

    def __init__(self, hidden: Tensor, weight: Tensor, *, trains_table: bool) -> None:
        self.hidden, self.dtype, self.num_classes, self.trains_table = hidden, weight.dtype, weight.shape[0], trains_table
        self.unit_x, self.unit_w = fp8.unit_of(hidden, fp8.INPUT), fp8.unit_of(weight, fp8.INPUT)
        self.unit_g = torch.full((), 1.0 / torch.finfo(fp8.GRADIENT).max, dtype=torch.float32, device=weight.device)
        self.weight, self.weight_turned = fp8.both(weight, self.unit_w, fp8.INPUT)
        self.d_hidden, self.over = torch.empty_like(hidden), torch.empty(0)

    def logits(self, rows: slice) -> Tensor:
        """Scores of some rows."""
        rounded = fp8.straight(self.hidden[rows], self.unit_x, fp8.INPUT)
        return fp8.multiply(rounded, self.weight, self.unit_x, self.unit_w, self.dtype, fast=True)

    def back(self, d_logits: Tensor, rows: slice) -> None:
        """Add the gradient of these rows' scores."""
        if rows.start == 0:
            self.over = torch.empty(self.num_classes, len(self.hidden), dtype=fp8.GRADIENT, device=d_logits.device)
        rounded = fp8.both_into(d_logits, self.unit_g, self.over[:, rows])
        self.d_hidden[rows] = fp8.multiply(rounded, self.weight_turned, self.unit_g, self.unit_w, self.dtype, fast=False)

    def gradients(self) -> tuple[Tensor, Tensor | None]:
        """Gradients of hidden states and of the table."""
        if not self.trains_table:
            return self.d_hidden, None
        del self.weight, self.weight_turned  # room for the table's gradient
        hidden_turned = fp8.turned(self.hidden, self.unit_x, fp8.INPUT)
        return self.d_hidden, fp8.multiply(self.over, hidden_turned, self.unit_g, self.unit_x, self.dtype, fast=False)


class _BlockedLoss(torch.autograd.Function):
    """Sum of losses, block by block; gradients are computed in the forward, and only scaled in the backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, num_rows: int, kind: type[Products]) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        products = kind(hidden, weight, trains_table=ctx.needs_input_grad[1])
        blocks = [slice(start, min(start + num_rows, len(hidden))) for start in range(0, len(hidden), num_rows)]
        if not any(ctx.needs_input_grad):
            for rows in blocks:
                loss += F.cross_entropy(products.logits(rows).float(), labels[rows], ignore_index=IGNORED_LABEL, reduction="sum")
            return loss
        for rows in blocks:
            block_loss, d_logits = score(hidden.device.type)(products.logits(rows), labels[rows])
            loss += block_loss
            products.back(d_logits, rows)
            del d_logits
        ctx.save_for_backward(*products.gradients())
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        times = scaling(d_hidden.device.type)
        return times(d_hidden, gradient), None if d_weight is None else times(d_weight, gradient), None, None, None


def scored(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of some rows, and its gradient with respect to their logits, which it overwrites; few passes even uncompiled."""
    counts = labels != IGNORED_LABEL
    wanted = torch.where(counts, labels, 0)[:, None]
    scores = logits.float()
    log_sum = torch.logsumexp(scores, dim=-1, keepdim=True)
    loss = ((log_sum - scores.gather(-1, wanted))[:, 0] * counts).sum()
    shares = scores.sub_(log_sum).exp_()
    shares.scatter_add_(-1, wanted, shares.new_full(wanted.shape, -1.0))
    shares[~counts] = 0.0
    return loss, shares.to(logits.dtype)


@cache
def score(device_type: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The function that scores rows on a device: on a GPU one kernel, if Triton is installed."""
    if device_type == "cuda" and find_spec("triton") is not None:
        from meshwright.train.kernels.loss_kernel import score_in_place

        return score_in_place
    return scored


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """`x` multiplied in place by the number in a tensor."""
    return x.mul_(factor)


@cache
def scaling(device_type: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The function that multiplies a tensor by a number on a device: compiled on a GPU, where torch's own kernel takes twice the time."""
    return torch.compile(scaled, dynamic=False) if device_type == "cuda" else scaled
