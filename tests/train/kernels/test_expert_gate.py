"""The weighted gate by plain operations: the gradients that torch finds for the same written out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from meshwright.train.kernels.expert_gate import Groups, weighted_gate


def written_out(
    gate_up: torch.Tensor, weights: torch.Tensor, limit: float, bias: torch.Tensor | None, counts: torch.Tensor
) -> torch.Tensor:
    if bias is not None:
        gate_up = gate_up + bias.repeat_interleave(counts, dim=0)
    gate, up = gate_up.chunk(2, dim=-1)
    if limit:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate) * weights[:, None]
    return F.silu(gate) * up * weights[:, None]


@pytest.mark.parametrize("counts", [(0, 3, 0, 6), (1,), (0, 0)])
@pytest.mark.parametrize("limit", [0.0, 0.7])
@pytest.mark.parametrize("has_bias", [False, True])
def test_values_and_gradients(counts: tuple[int, ...], limit: float, has_bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(sum(counts), 8), (sum(counts),), (len(counts), 8)][: 2 + has_bias]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    sizes = torch.tensor(counts)
    found = weighted_gate(inputs[0], inputs[1], limit, Groups(inputs[2], sizes) if has_bias else None)
    wanted = written_out(inputs[0], inputs[1], limit, inputs[2] if has_bias else None, sizes)
    assert torch.allclose(found, wanted)
    cotangent = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(torch.autograd.grad(found, inputs, cotangent), torch.autograd.grad(wanted, inputs, cotangent), strict=True):
        assert torch.allclose(one, other)


def test_what_is_kept_for_the_backward_is_the_input_alone() -> None:
    kept: list[int] = []
    gate_up, weights = torch.randn(5, 8).requires_grad_(), torch.rand(5).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.data_ptr()) or x, lambda x: x):
        weighted_gate(gate_up, weights)
    assert kept == [gate_up.data_ptr(), weights.data_ptr()]
