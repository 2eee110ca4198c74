"""The weighted gate by kernels against fp64, with and without gpt-oss's clamps and biases."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.kernels.expert_gate import Groups, weighted_gate

COUNTS = {"one row": (0, 1, 0), "one group has all": (0, 0, 9), "empty groups": (0, 5, 0, 7, 1, 0, 0)}
NUMBERS = [(torch.float32, 2e-6), (torch.bfloat16, 8e-3)]


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert bool(torch.isfinite(found).all())
    return ((found.double().cpu() - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("width", [24, 1100])
@pytest.mark.parametrize("limit", [0.0, 1.5])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), NUMBERS, ids=str)
def test_values_and_gradients(
    counts: tuple[int, ...], width: int, limit: float, has_bias: bool, dtype: torch.dtype, bound: float, kernel_device: torch.device
) -> None:
    from meshwright.train.kernels import expert_gate_kernels as kernels

    def drawn(*shape: int, seed: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(kernel_device, dtype)

    rows, sizes = sum(counts), torch.tensor(counts)
    gate_up, gradient, bias = drawn(rows, 2 * width, seed=1), drawn(rows, width, seed=2), drawn(len(counts), 2 * width, seed=3)
    weights = drawn(rows, seed=4).float()
    inputs = [x.double().cpu().requires_grad_() for x in (gate_up, weights, bias)]
    wanted = weighted_gate(inputs[0], inputs[1], limit, Groups(inputs[2], sizes) if has_bias else None)
    wanted.backward(gradient.double().cpu())  # the plain definition itself is tested in test_expert_gate.py
    given = (bias, sizes.to(kernel_device)) if has_bias else (None, None)
    assert off(kernels.gated(gate_up, weights, limit, *given), wanted.detach()) <= bound
    d_gate_up, d_weights = kernels.gate_gradients(gate_up, weights, gradient, limit, *given)
    assert off(d_gate_up, inputs[0].grad) <= bound and off(d_weights, inputs[1].grad) <= bound


def test_sums_over_groups_of_rows(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.expert_gate_kernels import group_sums

    for counts in COUNTS.values():
        rows = torch.randn(sum(counts), 70, generator=torch.Generator().manual_seed(1)).to(kernel_device)
        wanted = torch.stack([part.double().sum(dim=0) for part in rows.split(counts)])
        assert torch.allclose(group_sums(rows, torch.tensor(counts, device=kernel_device)).double(), wanted, atol=1e-5)


def test_no_row_is_no_work(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.expert_gate_kernels import gate_gradients, gated

    gate_up, weights = torch.empty(0, 16, device=kernel_device), torch.empty(0, device=kernel_device)
    assert gated(gate_up, weights, 0.0, None, None).shape == (0, 8)
    assert gate_gradients(gate_up, weights, torch.empty(0, 8, device=kernel_device), 0.0, None, None)[0].shape == (0, 16)
