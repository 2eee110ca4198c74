"""Visits sorted, copied and added up by kernels: what plain operations give, for every way in which tokens may choose."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.kernels.routes import NOWHERE

CHOICES = {
    "one token": (torch.tensor([[2, 0]]), 3),
    "all tokens to one expert": (torch.full((300, 1), 3), 5),
    "more experts than tokens": (torch.tensor([[200, 7, 31], [5, 200, 255]]), 256),
    "some slots without an expert": (torch.tensor([[2, 0], [0, NOWHERE], [NOWHERE, NOWHERE], [0, 2]]), 3),
    "no slot with an expert": (torch.full((3, 2), NOWHERE), 4),
    "no token": (torch.empty(0, 2, dtype=torch.int64), 4),
    "many tokens": (torch.rand(150, 12, generator=torch.Generator().manual_seed(0)).argsort(dim=1)[:, :4], 12),
}


@pytest.mark.parametrize(("chosen", "num_destinations"), CHOICES.values(), ids=CHOICES)
def test_visits_are_sorted_as_a_stable_sort_does(chosen: torch.Tensor, num_destinations: int, kernel_device: torch.device) -> None:
    from meshwright.train.kernels.route_kernels import placed

    keys = chosen.flatten()
    order, positions, counts = placed(keys.to(kernel_device), num_destinations)
    last = torch.where(keys == NOWHERE, num_destinations, keys)
    wanted = torch.sort(last, stable=True).indices
    assert torch.equal(order.cpu(), wanted)
    assert torch.equal(positions.cpu()[wanted], torch.arange(len(keys)))
    assert counts.tolist() == torch.bincount(last, minlength=num_destinations + 1)[:num_destinations].tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [48, 2500])
@pytest.mark.parametrize(("chosen", "num_destinations"), CHOICES.values(), ids=CHOICES)
def test_rows_are_copied_and_added_up(
    chosen: torch.Tensor, num_destinations: int, width: int, dtype: torch.dtype, kernel_device: torch.device, is_interpreted: bool
) -> None:
    from meshwright.train.kernels.route_kernels import copied_rows, placed, summed_rows

    if is_interpreted and len(chosen) * width > 20_000:
        pytest.skip("element by element this takes minutes")
    order, positions, counts = placed(chosen.flatten().to(kernel_device), num_destinations)
    order = order[: int(counts.sum())]
    x = torch.randn(len(chosen), width, generator=torch.Generator().manual_seed(1)).to(kernel_device, dtype)
    num_slots = chosen.shape[1]
    copies = copied_rows(x, order, num_slots)
    assert torch.equal(copies, x[order // num_slots])
    summed = torch.zeros(len(chosen), width, device=kernel_device)
    for slot in range(num_slots):
        here = chosen[:, slot] != NOWHERE
        summed[here] += copies[positions.view(chosen.shape)[here, slot]].float()
    found = summed_rows(copies, positions.view(chosen.shape)).float()
    assert torch.allclose(found, summed, rtol=1e-6 if dtype == torch.float32 else 2**-7, atol=1e-6)  # the interpreter cuts bf16 off
