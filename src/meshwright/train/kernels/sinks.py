"""Attention sinks: a learned score of each head that takes part in the softmax and adds nothing to the output (gpt-oss).

A sink is one more key whose value is zero. So it can be joined to attention after any kernel, by the log-sum-exp: the output shrinks by the
share of the sink, and gradients of queries, keys and values are those of a part of the keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def with_sinks(out: Tensor, log_sums: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Output [B, T, N, D] and log-sum-exp [B, N, T] of attention to all keys and the sinks [N]."""
    whole = torch.logaddexp(log_sums, sinks.float()[:, None])
    share = (log_sums - whole).exp().transpose(1, 2)[..., None]
    return (out * share).to(out.dtype), whole


def sink_gradients(d_out: Tensor, out: Tensor, log_sums: Tensor, sinks: Tensor) -> Tensor:
    """Gradients of the sinks, from output and log-sum-exp with the sinks in them."""
    share = (sinks.float()[:, None] - log_sums).exp()
    weighted = (d_out.float() * out.float()).sum(dim=-1).transpose(1, 2)
    return -(share * weighted).sum(dim=(0, 2)).to(sinks.dtype)
