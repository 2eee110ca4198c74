"""A block of logits scored by one kernel: loss and gradient of fp64, in place, whatever the number of classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.kernels.fused_loss import score, scored

NUMBERS = [(torch.float32, 1e-5), (torch.bfloat16, 4e-3)]


def drawn(rows: int, classes: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits, and labels of which every seventh carries no loss."""
    generator = torch.Generator().manual_seed(classes)
    logits = (torch.randn(rows, classes, generator=generator) * 3).to(dtype)
    labels = torch.randint(0, classes, (rows,), generator=generator)
    labels[::7] = IGNORED_LABEL
    return logits.to(device), labels.to(device)


def exact(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and gradient in fp64."""
    inputs = logits.double().requires_grad_()
    loss = F.cross_entropy(inputs, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    loss.backward()
    assert inputs.grad is not None
    return loss.detach(), inputs.grad


@pytest.mark.parametrize("classes", [2, 53, 8192, 8193, 50_257, 128_256])
@pytest.mark.parametrize(("dtype", "bound"), NUMBERS, ids=str)
def test_loss_and_gradient_are_those_of_fp64(
    classes: int, dtype: torch.dtype, bound: float, kernel_device: torch.device, is_interpreted: bool
) -> None:
    from meshwright.train.kernels.loss_kernel import score_in_place

    logits, labels = drawn(8 if is_interpreted else 70, classes, dtype, kernel_device)
    wanted, d_logits = exact(logits, labels)
    loss, gradient = score_in_place(logits, labels)
    assert gradient is logits  # the place is the logits' own
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert (gradient.double() - d_logits).norm() <= bound * d_logits.norm()


def test_two_classes_worked_by_hand(kernel_device: torch.device) -> None:
    # scores of ln 3 and 0: shares 3/4 and 1/4; the second is right: loss ln 4, gradient (3/4, -3/4)
    from meshwright.train.kernels.loss_kernel import score_in_place

    logits = torch.tensor([[3.0, 1.0]], device=kernel_device).log()
    loss, gradient = score_in_place(logits, torch.tensor([1], device=kernel_device))
    assert loss.item() == pytest.approx(1.3862944) and gradient[0].tolist() == pytest.approx([0.75, -0.75])


def test_rows_without_a_label_have_neither_loss_nor_gradient(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.loss_kernel import score_in_place

    logits, _ = drawn(5, 100, torch.float32, kernel_device)
    loss, gradient = score_in_place(logits, torch.full((5,), IGNORED_LABEL, device=kernel_device))
    assert loss.item() == 0.0 and not bool(gradient.any())


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # by numpy, in lanes that the interpreter then leaves out
def test_large_scores_neither_overflow_nor_vanish(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.loss_kernel import score_in_place

    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], device=kernel_device)
    labels = torch.tensor([1, 0], device=kernel_device)
    wanted, d_logits = exact(logits, labels)
    loss, gradient = score_in_place(logits, labels)
    assert loss.item() == pytest.approx(wanted.item()) and torch.allclose(
        gradient.double(), d_logits, atol=1e-3
    )  # fp32 has so many digits at 10,000


def test_on_a_processor_plain_operations_score() -> None:
    assert score("cpu") is scored
    logits, labels = drawn(20, 53, torch.float32, torch.device("cpu"))
    wanted, d_logits = exact(logits, labels)
    loss, gradient = scored(logits, labels)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5) and torch.allclose(gradient.double(), d_logits, atol=1e-6)
