"""Tokens choose experts: scores in fp32, the choice, and the losses that keep the loads of experts even.

The losses are added to the gradients where they arise, so a pipeline stage needs nothing of the others for them. What a step counts (loads,
entropy, losses) is counted in the backward pass, which runs once for a micro-batch even where the forward pass is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.describe.model import Experts
from meshwright.describe.router import Balance
from meshwright.train.kernels.routes import NOWHERE, routes_to
from meshwright.train.kernels.scores import highest, logits_of

TINY = 1e-20  # added to a sum of weights before the division, as DeepSeek does
COUNTED = ("dropped", "auxiliary", "z", "entropy")  # what a tally holds after the loads, each summed over tokens


class Choice(NamedTuple):
    """The experts that tokens visit, and with which weights; [tokens, active]. An expert of `NOWHERE` is not visited."""

    experts: Tensor
    weights: Tensor  # fp32
    num_visits: int | None = None  # how many are visited, if the host knows it: all, unless some are dropped


class Scored(NamedTuple):
    """What a router computes from hidden states. The last two are there if it counts in the backward pass."""

    experts: Tensor  # [tokens, active]
    weights: Tensor  # fp32
    loss: Tensor | None
    counted: Tensor | None


@dataclass(slots=True, eq=False)
class Tally:
    """What one router counted in a step: tokens of each expert, then `COUNTED`; of this rank's tokens."""

    counts: Tensor  # fp64
    seed: float = 0.0  # the gradient of the whole step's loss by the loss of one token

    def begin(self, seed: float) -> None:
        """Begin a new step."""
        self.counts.zero_()
        self.seed = seed


class TokenRouter(nn.Module):
    """Chooses experts for tokens. Of equal scores, the lower expert's wins."""

    def __init__(self, hidden: int, experts: Experts) -> None:
        super().__init__()
        self.experts, self.router = experts, experts.router
        self.weight = nn.Parameter(torch.empty(experts.num_experts, hidden))
        self.bias = nn.Parameter(torch.empty(experts.num_experts)) if self.router.has_bias else None
        bias = torch.zeros(experts.num_experts) if self.router.has_selection_bias else None
        self.register_buffer("selection_bias", bias)
        self.shares: Tensor | None = None  # of the step before, times the number of experts: for a balance over the global batch
        self.balance, self.tally = Balance(), None
        self.add_parts: Callable[[Tensor], Tensor] = _same  # sums over the ranks that hold parts of the same sequences
        self.num_parts = 1  # how many such ranks there are

    selection_bias: Tensor | None
    tally: Tally | None

    def forward(self, x: Tensor) -> Choice:
        """The choice of every token, from normalized hidden states [B, T, H]."""
        return self.choice(self.scored(x))

    def scored(self, x: Tensor) -> Scored:
        """What is computed from hidden states [B, T, H], without any side effect."""
        logits = logits_of(x, self.weight, self.bias)
        scores = logits if self.router.chooses_first else logits.softmax(-1) if self.router.scores == "softmax" else logits.sigmoid()
        chosen = self.chosen(scores)
        weights = self.weights_of(scores.gather(-1, chosen))
        loss, counted = self.counted(logits, scores, chosen) if self.tally is not None and torch.is_grad_enabled() else (None, None)
        return Scored(chosen.flatten(0, 1), weights.flatten(0, 1), loss, counted)

    def choice(self, scored: Scored) -> Choice:
        """The choice itself: visits beyond the capacity of an expert are dropped, and the backward pass counts."""
        experts, weights, loss, counted = scored
        visited = within(experts, self.capacity(len(experts)), self.experts.num_experts) if self.balance.capacity else experts
        if loss is not None and counted is not None:
            if visited is not experts:
                counted = counted + F.pad((visited != experts).sum().to(counted)[None], (self.experts.num_experts, len(COUNTED) - 1))
            weights = _Watched.apply(weights, loss, counted, self.tally)
        if visited is experts:
            return Choice(experts, weights, experts.numel())
        return Choice(visited, torch.where(visited == NOWHERE, 0.0, weights))

    @torch.no_grad()
    def chosen(self, scores: Tensor) -> Tensor:
        """The experts of every token, the best first; [B, T, active]."""
        router = self.router
        if self.selection_bias is not None:
            scores = scores + self.selection_bias
        if router.num_groups > 1:
            grouped = scores.unflatten(-1, (router.num_groups, -1))
            best = grouped.topk(router.num_group_scores, dim=-1).values.sum(-1)
            kept = highest(best, router.num_chosen_groups)
            lost = torch.ones_like(best, dtype=torch.bool).scatter(-1, kept, value=False)
            scores = grouped.masked_fill(lost[..., None], -torch.inf).flatten(-2)
        return highest(scores, self.experts.num_active)

    def weights_of(self, scores: Tensor) -> Tensor:
        """The weights of chosen experts, from their scores."""
        router = self.router
        if router.chooses_first:
            weights = scores.softmax(-1)
        elif router.renormalizes:
            weights = scores / (scores.sum(-1, keepdim=True) + TINY)
        else:
            weights = scores
        return weights * router.scale if router.scale != 1.0 else weights

    def capacity(self, num_tokens: int) -> int:
        """The most tokens that an expert takes of a rank's micro-batch."""
        mean = num_tokens * self.experts.num_active / self.experts.num_experts
        return max(int(-(-self.balance.capacity * mean // 1)), 1)

    def counted(self, logits: Tensor, scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The losses whose gradients begin at the router, and what a tally is to count: loads, and `COUNTED` as if none was dropped."""
        hits = _hits(chosen, self.experts.num_experts)  # [B, E]
        probabilities = self.probabilities(logits, scores)
        zero = logits.new_zeros(())
        auxiliary = self.auxiliary(hits, probabilities) if self.balance.auxiliary else zero
        z = logits.logsumexp(-1).square().sum() if self.balance.z else zero
        loss = self.balance.auxiliary * auxiliary + self.balance.z * z
        entropy = torch.special.entr(probabilities.detach()).sum()
        sums = torch.stack([value.detach().double() for value in (zero, auxiliary, z, entropy)])
        return loss, torch.cat((hits.sum(0).double(), sums))

    def probabilities(self, logits: Tensor, scores: Tensor) -> Tensor:
        """Scores of all experts, which add up to one for every token."""
        if self.router.chooses_first:
            return logits.softmax(-1)
        return scores if self.router.scores == "softmax" else scores / (scores.sum(-1, keepdim=True) + TINY)

    def auxiliary(self, hits: Tensor, probabilities: Tensor) -> Tensor:
        """This rank's part of the auxiliary loss, each token with the loss of what it belongs to; 1 for each token at an even load."""
        if self.balance.scope == "batch":
            return (probabilities * self.shares).sum() if self.shares is not None else probabilities.sum()
        num_tokens = probabilities.shape[1] * self.num_parts
        whole = self.add_parts(hits.float())
        if self.balance.scope == "micro-batch":
            num_tokens *= len(hits)
            whole = whole.sum(0, keepdim=True)
        shares = whole * (self.experts.num_experts / (self.experts.num_active * num_tokens))
        return (probabilities.sum(1) * shares).sum()


class _Watched(torch.autograd.Function):
    """The first argument, with a loss whose gradient begins here, and counts that are taken in the backward pass."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, loss: Tensor, counted: Tensor, tally: Tally) -> Tensor:
        ctx.save_for_backward(counted)
        ctx.tally = tally
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (counted,) = ctx.saved_tensors
        ctx.tally.counts += counted
        return gradient, torch.full((), ctx.tally.seed, dtype=torch.float32, device=counted.device), None, None


def within(experts: Tensor, capacity: int, num_experts: int) -> Tensor:
    """The same choices, without those of an expert after its first `capacity` tokens; [tokens, active]."""
    routes = routes_to(experts, num_experts, experts.numel())
    starts = routes.counts.cumsum(0) - routes.counts
    places = routes.positions - starts[experts]
    return torch.where(places < capacity, experts, NOWHERE)


def _hits(chosen: Tensor, num_experts: int) -> Tensor:
    """How many tokens of each sequence chose each expert, [B, experts]."""
    flat = chosen.flatten(1)
    return torch.zeros(len(flat), num_experts, dtype=torch.int64, device=flat.device).scatter_add_(1, flat, torch.ones_like(flat))


def _same(x: Tensor) -> Tensor:
    return x
