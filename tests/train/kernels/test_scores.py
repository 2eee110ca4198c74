"""The router's product and the best scores on a processor; and the split of gradients that a GPU multiplies."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meshwright.train.kernels import scores
from meshwright.train.kernels.scores import highest, logits_of


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("is_narrow", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
def test_logits_are_in_fp32_with_gradients_of_theirs(is_narrow: bool, has_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_narrow:
        monkeypatch.setattr(scores, "_is_narrow", lambda *_: True)
        monkeypatch.setattr(scores, "_gives_fp32", lambda _: False)  # products in fp32 of the factors in bf16: what a GPU gives
    x, weight, bias = drawn(2, 7, 24, seed=0).bfloat16(), drawn(16, 24, seed=1).bfloat16(), drawn(16, seed=2) if has_bias else None
    inputs = [x.requires_grad_(), weight.requires_grad_()]
    found = logits_of(*inputs, bias)
    wide = [one.detach().double().requires_grad_() for one in inputs]
    wanted = F.linear(*wide, None if bias is None else bias.double())
    assert found.dtype == torch.float32 and torch.allclose(found.double(), wanted, atol=1e-5)
    cotangent = drawn(2, 7, 16, seed=3)
    for one, other in zip(
        torch.autograd.grad(found, inputs, cotangent), torch.autograd.grad(wanted, wide, cotangent.double()), strict=True
    ):
        assert (one.double() - other).norm() <= 2**-8 * other.norm()  # they are rounded to bf16 once


def test_of_equal_scores_the_lower_index_comes_first() -> None:
    assert highest(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 3).tolist() == [[1, 2, 3]]
