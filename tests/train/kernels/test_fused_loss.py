"""The blocked loss is the plain one, forward and backward, however the rows are cut."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels.fused_loss import Plain, _BlockedLoss, scored, summed_loss

ROWS, WIDTH, CLASSES = 37, 16, 53


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(torch.seed() % 2**31)
    hidden = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=generator)
    labels[::5] = IGNORED_LABEL
    return hidden.requires_grad_(), weight.requires_grad_(), labels


def reference(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, factor: float) -> tuple[torch.Tensor, ...]:
    """Loss and gradients in float64."""
    h, w = (x.detach().double().requires_grad_() for x in (hidden, weight))
    loss = F.cross_entropy(h @ w.T, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    (loss * factor).backward()
    return loss.detach(), h.grad, w.grad


@pytest.mark.parametrize("rows", [1, 8, ROWS, 1000])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_blocks_give_the_loss_and_gradients_of_float64(rows: int, dtype: torch.dtype, bound: float) -> None:
    hidden, weight, labels = inputs(dtype)
    loss = _BlockedLoss.apply(hidden, weight, labels, rows, Plain)
    (loss * 0.25).backward()
    for found, wanted in zip((loss, hidden.grad, weight.grad), reference(hidden, weight, labels, 0.25), strict=True):
        assert (found.double() - wanted).norm() <= bound * wanted.norm()


def test_without_gradients_the_loss_is_the_same() -> None:
    hidden, weight, labels = inputs(torch.float32)
    with torch.no_grad():
        alone = summed_loss(hidden[None], weight, labels[None])
    torch.testing.assert_close(alone, summed_loss(hidden[None], weight, labels[None]).detach())


def test_a_batch_without_labels_has_no_loss_and_no_gradient() -> None:
    hidden, weight, labels = inputs(torch.float32)
    loss = summed_loss(hidden[None], weight, torch.full_like(labels, IGNORED_LABEL)[None])
    loss.backward()
    assert loss.item() == 0
    assert hidden.grad.abs().max() == 0 and weight.grad.abs().max() == 0


def test_each_rows_gradient_sums_to_zero() -> None:
    hidden, weight, labels = inputs(torch.float32)
    _, gradient = scored(hidden.detach() @ weight.detach().T, labels)
    assert gradient.sum(dim=-1).abs().max() < 1e-5  # shares add up to one, and the label takes one away
