"""Sinks against their definition: one more score in the softmax, whose weight is dropped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.train.kernels.attention_parts import attended_as
from meshwright.train.kernels.sinks import with_sinks

WINDOWS = [0, 5]


def by_definition(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, window: int) -> Tensor:
    """As gpt-oss's own code has it: scores and the sink side by side, softmax, and the last column is dropped."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None, :]
    scores = scores.masked_fill((distance < 0) | (distance >= (window or q.shape[2])), float("-inf"))
    column = sinks[None, :, None, None].expand(scores.shape[0], -1, scores.shape[2], 1)
    weights = torch.cat((scores, column), dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ v).transpose(1, 2)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_output_and_gradients_are_those_of_the_definition(window: int, size: float) -> None:
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(2, 17, count, 8, generator=generator).requires_grad_() for count in (4, 2, 2)]
    sinks = (torch.randn(4, generator=generator) * size).requires_grad_()
    d_out = torch.randn(2, 17, 4, 8, generator=generator)
    found = []
    for out in (attended_as(*inputs, sinks=sinks, window=window), by_definition(*inputs, sinks, window)):
        found.append((out.detach(), *torch.autograd.grad(out, [*inputs, sinks], d_out)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_row_without_keys_stays_empty() -> None:
    out, log_sums = torch.zeros(1, 1, 2, 4), torch.tensor([[[float("-inf")], [0.0]]])
    joined, whole = with_sinks(out, log_sums, torch.tensor([1.0, 0.0]))
    assert not joined.any()
    assert whole.flatten().tolist() == pytest.approx([1.0, 0.6931472])
