"""Attention in a band, tile by tile, against attention under a mask."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels import banded as module
from meshwright.train.kernels.attention_kernels import flash_4_of, flash_of
from meshwright.train.kernels.attention_parts import attended_as, kernel_for, trial
from meshwright.train.kernels.banded import Band, banded, banded_back, banded_of
from meshwright.train.kernels.runs import runs_of


def heads(tokens: int, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, tokens, count, 8, generator=generator).requires_grad_() for count in (4, 2, 2)]


def masked(query: Tensor, key: Tensor, value: Tensor, seen: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True).transpose(1, 2)


def within(tokens: int, window: int) -> Tensor:
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    return (distance >= 0) & (distance < window)


@pytest.mark.parametrize("window", [1, 2, 7, 13, 23, 24])
@pytest.mark.parametrize("tile", [1, 5, 24])
def test_a_band_is_a_mask(window: int, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", tile)
    inputs = heads(24)
    d_out = torch.randn(2, 24, 4, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for out in (attended_as(*inputs, window=window), masked(*inputs, within(24, window))):
        found.append((out.detach(), *torch.autograd.grad(out, inputs, d_out)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shift", [-30, -6, -1, 0, 3, 9, 40])
def test_pieces_at_other_positions_and_queries_without_keys(shift: int) -> None:
    query, key, value = (x.detach() for x in heads(12))
    band = Band(5, shift)
    out, log_sums = banded(query, key, value, band)
    distance = torch.arange(12)[:, None] + shift - torch.arange(12)[None, :]
    seen = (distance >= 0) & (distance < 5)
    alone = ~seen.any(dim=1)
    assert not out[:, alone].any() and (log_sums[..., alone] == float("-inf")).all()
    assert log_sums[..., ~alone].isfinite().all()
    if not alone.all():
        torch.testing.assert_close(out[:, ~alone], masked(query[:, ~alone], key, value, seen[~alone]), rtol=1e-5, atol=1e-6)
    gradients = banded_back(torch.ones_like(out), query, key, value, out, log_sums, band)
    assert all(gradient.isfinite().all() for gradient in gradients) and not gradients[0][:, alone].any()
    assert not gradients[2][:, ~seen.any(dim=0)].any()


def test_documents_hide_what_the_window_shows() -> None:
    query, key, value = (x.detach() for x in heads(12))
    documents = torch.tensor([[0] * 4 + [1] * 8, [0] * 12])
    seen = within(12, 6)[None] & (documents[:, :, None] == documents[:, None, :])
    out, log_sums = banded(query, key, value, Band(6), (documents, documents))
    torch.testing.assert_close(out, masked(query, key, value, seen[:, None]), rtol=1e-5, atol=1e-6)
    runs = runs_of(documents.numpy())
    torch.testing.assert_close(attended_as(query, key, value, window=6, runs=runs), out, rtol=1e-5, atol=1e-6)
    assert log_sums.isfinite().all()


def test_a_processor_has_no_faster_kernel_for_windows() -> None:
    query, key, _ = heads(4)
    assert kernel_for(query, key, packed=False, cut=False, window=3) is banded_of(3)
    assert flash_of(3).packed_forward is not None and flash_4_of(3).packed_backward is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("packed", [False, True])
def test_windows_of_torchs_flash_attention_are_right(packed: bool) -> None:
    assert trial(flash_of(0), 4, 64, torch.device("cuda", 0), packed=packed, cut=False, window=100) == ""
