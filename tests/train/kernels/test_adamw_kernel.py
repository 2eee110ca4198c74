"""AdamW's kernel of one pass: torch's own update in every precision, with scale, decay and copy; elsewhere torch's own is called."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meshwright.describe.workload import Training
from meshwright.train.parallel.optimizer import AdamW
from meshwright.train.parallel.shards import Cut, Shard

TRAINING = Training(learning_rate=1e-2, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1)


def exact(values: Tensor, gradients: list[Tensor], rate: float, decay: float, scale: float) -> Tensor:
    """The updates in fp64, by torch's AdamW."""
    theirs = values.double().cpu().requires_grad_()
    wanted = torch.optim.AdamW([theirs], lr=rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    for gradient in gradients:
        theirs.grad = gradient.double().cpu() * scale
        wanted.step()
    return theirs.detach()


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=str)
@pytest.mark.parametrize("count", [1, 2047, 2048, 5001])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_updates_are_those_of_float64(dtype: torch.dtype, bound: float, count: int, decay: float, kernel_device: torch.device) -> None:
    from meshwright.train.kernels.adamw_kernel import update

    generator = torch.Generator().manual_seed(count)
    start = torch.randn(count, generator=generator).to(dtype)
    gradients = [torch.randn(count, generator=generator).to(dtype) for _ in range(3)]
    values, mean, square = (x.to(kernel_device) for x in (start.clone(), torch.zeros(count, dtype=dtype), torch.zeros(count, dtype=dtype)))
    for number, gradient in enumerate(gradients):
        update(
            values,
            None,
            gradient.to(kernel_device),
            mean,
            square,
            TRAINING,
            1e-2,
            decay,
            torch.tensor(0.25, device=kernel_device),
            number + 1,
        )
    wanted = exact(start, gradients, 1e-2, decay, 0.25)
    assert (values.double().cpu() - wanted).norm() <= bound * max(wanted.norm().item(), 1.0)


def test_the_first_update_worked_by_hand(kernel_device: torch.device) -> None:
    """The first update moves by the learning rate against the gradient's sign, once the value has decayed: 2 (1 - 0.01 x 0.1) - 0.01."""
    from meshwright.train.kernels.adamw_kernel import update

    values, gradient, mean, square = (torch.tensor([x], device=kernel_device) for x in (2.0, 8.0, 0.0, 0.0))
    copy = torch.zeros(1, dtype=torch.bfloat16, device=kernel_device)
    update(values, copy, gradient, mean, square, TRAINING, 1e-2, 0.1, torch.tensor(0.5, device=kernel_device), 1)
    assert values.item() == pytest.approx(1.988, rel=1e-6)
    assert (mean.item(), square.item()) == pytest.approx((0.1 * 4.0, 0.05 * 16.0))
    assert copy.item() == values.to(torch.bfloat16).item()


def test_nothing_behind_the_last_element_is_touched(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.adamw_kernel import update

    room = torch.full((3000,), 7.0, device=kernel_device)
    gradient, mean, square = (torch.ones(2500, device=kernel_device) for _ in range(3))
    update(room[:2500], None, gradient, mean, square, TRAINING, 1e-2, 0.0, torch.tensor(1.0, device=kernel_device), 1)
    assert bool((room[2500:] == 7.0).all()) and bool((room[:2500] != 7.0).all())


def test_shards_on_a_processor_are_updated_by_torch() -> None:
    cut = Cut(name="w", shape=(4,), start=(0,), local=(4,))
    shard = Shard(values=torch.ones(4), gradient=None, spans=((cut, 0, 4, 0),), decays=True, is_partial=False, copies=1, copy=None)
    assert not AdamW([shard], TRAINING).scales_on_device and not AdamW([], TRAINING).scales_on_device


def test_a_scale_that_is_no_number_changes_nothing(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.adamw_kernel import update

    held = [torch.full((3000,), float(number), device=kernel_device) for number in range(4)]
    copy = torch.full((3000,), 9.0, dtype=torch.bfloat16, device=kernel_device)
    values, gradient, mean, square = held
    update(values, copy, gradient, mean, square, TRAINING, 1e-2, 0.1, torch.tensor(float("nan"), device=kernel_device), 1)
    assert [bool((tensor == number).all()) for number, tensor in enumerate(held)] == [True] * 4 and bool((copy == 9.0).all())
