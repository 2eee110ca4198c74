"""Norms by their definitions."""

from __future__ import annotations

import torch

from meshwright.describe.load import load_model
from meshwright.train.model.norms import LayerNorm, RMSNorm, norm_of


def test_root_mean_square_of_each_head() -> None:
    norm, x = RMSNorm(4, 0.5), torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        norm.weight.copy_(torch.arange(4.0))
    expected = x / (x.square().mean(dim=-1, keepdim=True) + 0.5).sqrt() * torch.arange(4.0)
    torch.testing.assert_close(norm.alone(x), expected)
    past, normed = norm(x)
    assert past is x
    torch.testing.assert_close(normed, expected)


def test_a_model_has_its_kind() -> None:
    assert isinstance(norm_of(load_model("llama-2m")), RMSNorm)
    assert isinstance(norm_of(load_model("gpt-3-5b")), LayerNorm)
