"""Output projection and cross-entropy in one: logits exist for some rows at a time, and their gradient is made at once.

The loss's gradient with respect to logits needs nothing that comes later but a factor, so each block of rows is projected, scored and taken
back to hidden states and weights before the next one. With 128,256 classes and 8,192 tokens the logits alone would be 4 GB in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.samples import IGNORED_LABEL

BLOCK_ELEMENTS = 2**29  # logits at a time: 1 GB in bf16


def summed_loss(hidden_BTH: Tensor, weight_VH: Tensor, labels_BT: Tensor) -> Tensor:
    """Cross-entropy summed over the tokens that carry loss."""
    rows = max(BLOCK_ELEMENTS // weight_VH.shape[0], 1)
    return _BlockedLoss.apply(hidden_BTH.flatten(0, 1), weight_VH, labels_BT.flatten(), rows)


class _BlockedLoss(torch.autograd.Function):
    """Sum of losses, block by block; gradients are made in the forward, and only multiplied in the backward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, rows: int) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        if not any(ctx.needs_input_grad):
            for part, wanted in zip(hidden.split(rows), labels.split(rows), strict=True):
                loss += F.cross_entropy(F.linear(part, weight).float(), wanted, ignore_index=IGNORED_LABEL, reduction="sum")
            return loss
        d_hidden = torch.empty_like(hidden)
        d_weight: Tensor | None = None
        for part, wanted, d_part in zip(hidden.split(rows), labels.split(rows), d_hidden.split(rows), strict=True):
            block_loss, d_logits = score(hidden.device.type)(F.linear(part, weight), wanted)
            loss += block_loss
            torch.mm(d_logits, weight, out=d_part)
            if d_weight is None:
                d_weight = d_logits.T @ part
            else:
                d_weight.addmm_(d_logits.T, part)
        ctx.save_for_backward(d_hidden, d_weight)
        return loss

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden.mul_(gradient), d_weight.mul_(gradient), None, None


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


def scored_as_one(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The same as `scored`, written so that a compiler makes two passes over the logits of it."""
    counts = labels != IGNORED_LABEL
    wanted = torch.where(counts, labels, 0)
    scores = logits.float()
    log_sum = torch.logsumexp(scores, dim=-1)
    loss = ((log_sum - scores.gather(-1, wanted[:, None])[:, 0]) * counts).sum()
    shares = (scores - log_sum[:, None]).exp()
    classes = torch.arange(logits.shape[-1], device=logits.device)
    gradient = (shares - (classes[None, :] == wanted[:, None]).to(shares.dtype)) * counts[:, None]
    return loss, gradient.to(logits.dtype)


@cache
def score(device_type: str) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """How rows are scored on a device: on a GPU compiled."""
    return torch.compile(scored_as_one, dynamic=False) if device_type == "cuda" else scored
