"""Output projection and cross-entropy in one: logits exist for some rows at a time, and their gradient is made at once.

The loss's gradient with respect to logits needs nothing that comes later but a factor, so each block of rows is projected, scored and taken
back to hidden states and weights before the next one. With 128,256 classes and 8,192 tokens the logits alone would be 4 GB in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train import fp8
from meshwright.train.samples import IGNORED_LABEL

BLOCK_BYTES = 2**31  # of logits at a time
FP8_BLOCK_BYTES = 2**29  # the same where their gradient is there three times
ROW_MULTIPLE = 1024  # products of whole tiles are the fastest


def summed_loss(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross-entropy summed over the tokens that carry loss."""
    return _BlockedLoss.apply(hidden_BTH.flatten(0, 1), weight_VH, labels_BT.flatten(), rows_at_once(weight_VH, BLOCK_BYTES), Plain)


def summed_loss_in_fp8(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """The same with the three products in fp8."""
    return _BlockedLoss.apply(hidden_BTH.flatten(0, 1), weight_VH, labels_BT.flatten(), rows_at_once(weight_VH, FP8_BLOCK_BYTES), Rounded)


def rows_at_once(weight_VH: Tensor, block_bytes: int) -> int:
    """Rows of a block of logits."""
    rows = max(block_bytes // (weight_VH.shape[0] * weight_VH.element_size()), 1)
    return rows - rows % ROW_MULTIPLE if rows > ROW_MULTIPLE else rows


class Products(Protocol):
    """The three products with the table: to logits, and from their gradient back to hidden states and to the table."""

    def __init__(self, weight: Tensor) -> None: ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of some rows."""

    def back(self, d_logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of these rows and of the table."""


class Plain:
    """Products in the numbers that the table has."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of some rows."""
        return F.linear(hidden, self.weight)

    def back(self, d_logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of these rows and of the table."""
        return d_logits @ self.weight, d_logits.T @ hidden


class Rounded:
    """Products in fp8. A gradient of logits is at most one, so its unit needs no look at the numbers."""

    def __init__(self, weight: Tensor) -> None:
        self.dtype = weight.dtype
        self.unit_w = fp8.unit_of(weight, fp8.INPUT)
        self.weight, self.weight_turned = fp8.both(weight, self.unit_w, fp8.INPUT)
        self.unit_g = torch.full((), 1.0 / torch.finfo(fp8.GRADIENT).max, dtype=torch.float32, device=weight.device)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of some rows."""
        self.unit_x = fp8.unit_of(hidden, fp8.INPUT)
        rounded, self.hidden_turned = fp8.both(hidden, self.unit_x, fp8.INPUT)
        return fp8.multiply(rounded, self.weight, self.unit_x, self.unit_w, self.dtype, fast=True)

    def back(self, d_logits: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of these rows and of the table."""
        rounded, over = fp8.both(d_logits, self.unit_g, fp8.GRADIENT)
        d_hidden = fp8.multiply(rounded, self.weight_turned, self.unit_g, self.unit_w, self.dtype, fast=True)
        return d_hidden, fp8.multiply(over, self.hidden_turned, self.unit_g, self.unit_x, self.dtype, fast=False)


class _BlockedLoss(torch.autograd.Function):
    """Sum of losses, block by block; gradients are made in the forward, and only multiplied in the backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, rows: int, kind: type[Products]) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        products = kind(weight)
        blocks = zip(hidden.split(rows), labels.split(rows), strict=True)
        if not any(ctx.needs_input_grad):
            for part, wanted in blocks:
                loss += F.cross_entropy(products.logits(part).float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
            return loss
        d_hidden, d_weight = [], None
        for part, wanted in blocks:
            block_loss, d_logits = score(hidden.device.type)(products.logits(part), wanted)
            loss += block_loss
            d_part, d_table = products.back(d_logits, part)
            del d_logits
            d_hidden.append(d_part)
            d_weight = d_table if d_weight is None else d_weight.add_(d_table)
        ctx.save_for_backward(torch.cat(d_hidden) if len(d_hidden) > 1 else d_hidden[0], d_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        times = scaling(d_hidden.device.type)
        return times(d_hidden, gradient), times(d_weight, gradient), None, None, None


def scored(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The summed loss of some rows, and its gradient with respect to their logits, which it overwrites; few passes without a compiler."""
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
    """How rows are scored on a device: on a GPU by one kernel, where Triton is there to make it."""
    if device_type == "cuda" and find_spec("triton") is not None:
        from meshwright.train.loss_kernel import score_in_place

        return score_in_place
    return scored


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """`x` times a number that a tensor holds, in its place."""
    return x.mul_(factor)


@cache
def scaling(device_type: str) -> Callable[[Tensor, Tensor], Tensor]:
    """How a tensor is multiplied by a number on a device: compiled on a GPU, where torch's own kernel takes twice the time."""
    return torch.compile(scaled, dynamic=False) if device_type == "cuda" else scaled
