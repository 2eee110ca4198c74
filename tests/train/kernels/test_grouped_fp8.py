"""Grouped products in fp8 are those of float64 up to the rounding of their factors; gradients of weights are not rounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from expert_cases import MIXTRAL
from parity import WORKLOAD, joined, run_steps
from ranks import Pools

from meshwright.layout import Layout, parse_layout
from meshwright.train.kernels import grouped_fp8
from meshwright.train.kernels.fp8 import use_fp8
from meshwright.train.kernels.grouped import LOOP, GroupedArithmetic, GroupedLinear, agrees
from meshwright.train.kernels.grouped_fp8 import EMULATED, NARROW, fp8_arithmetic_for, rounded

CPU = torch.device("cpu")
BOUND = 0.045  # rounding to e4m3 is off by 2.6 % of an element on the average; errors of two factors add in squares


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_every_row_is_scaled_by_its_largest_element() -> None:
    x = torch.tensor([[1.0, -2.0], [1e-4, 5e-5], [0.0, 0.0]])
    narrow, units = rounded(x)
    assert narrow.dtype == NARROW and torch.allclose(narrow.float() * units[:, None], x, rtol=2**-4)
    assert narrow.float().abs().amax(dim=1).tolist() == [448.0, 448.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_and_gradients_are_those_of_float64(dtype: torch.dtype) -> None:
    counts = torch.tensor((0, 24, 0, 40, 1))
    rows, weight, gradient = drawn(65, 96, seed=0).to(dtype), drawn(5, 64, 96, seed=1).to(dtype), 1e-4 * drawn(65, 64, seed=2).to(dtype)
    r, w, g = rows.double(), weight.double(), gradient.double()
    assert off(EMULATED.forward(rows, weight, counts), LOOP.forward(r, w, counts)) <= BOUND
    assert off(EMULATED.to_input(gradient, weight, counts), LOOP.to_input(g, w, counts)) <= BOUND
    assert off(EMULATED.to_weight(gradient, rows, counts), LOOP.to_weight(g, r, counts)) <= (1e-6 if dtype == torch.float32 else 2**-8)


def test_rows_of_different_sizes_do_not_disturb_each_other() -> None:
    rows, weight = torch.tensor([[1e4], [1e-4]]).expand(2, 16), torch.ones(1, 16, 16)
    found = EMULATED.forward(rows, weight, torch.tensor([2]))
    assert torch.allclose(found[:, 0], torch.tensor([16e4, 16e-4]), rtol=1e-3)


def test_a_layer_multiplies_in_fp8_once_it_is_told_to() -> None:
    layer, rows, counts = GroupedLinear(3, 32, 48, bias=False), drawn(4, 32, seed=3), torch.tensor([1, 0, 3])
    torch.nn.init.normal_(layer.weight)
    exact = layer(rows, counts)
    use_fp8(torch.nn.Sequential(layer), CPU)
    assert 1e-4 < off(layer(rows, counts), exact.double()) <= 2 * BOUND
    assert fp8_arithmetic_for(CPU, torch.float32) is EMULATED


def test_where_torchs_products_are_wrong_experts_multiply_in_bf16_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = GroupedArithmetic("wrong", lambda rows, weight, counts: 2 * EMULATED.forward(rows, weight, counts), LOOP.to_weight)
    assert not agrees(wrong, EMULATED, CPU, torch.float32)
    monkeypatch.setattr(grouped_fp8, "agrees", lambda *_: False)
    monkeypatch.setattr(grouped_fp8, "arithmetic_for", lambda *_: LOOP)
    with pytest.warns(UserWarning, match="not right here"):
        assert fp8_arithmetic_for.__wrapped__(torch.device("cuda"), torch.bfloat16) is LOOP


def test_training_experts_in_fp8_follows_bf16(pools: Pools) -> None:
    """The bounds are those of dense layers in fp8."""
    bf16, fp8 = (replace(WORKLOAD, precision=precision) for precision in ("bf16", "fp8-current"))
    wanted = joined(pools.of(1).run(run_steps, MIXTRAL, bf16, Layout(micro_batch=8), 2))
    found = joined(pools.of(2).run(run_steps, MIXTRAL, fp8, parse_layout("dp=2,ep=2"), 2))
    for ours, theirs in zip(found.losses, wanted.losses, strict=True):
        assert ours != theirs and abs(ours / theirs - 1) < 0.003
    assert abs(found.norms[0] / wanted.norms[0] - 1) < 0.05
    for name, gradient in wanted.gradients.items():
        assert np.linalg.norm(found.gradients[name] - gradient) < 0.2 * np.linalg.norm(gradient) + 0.01 * wanted.norms[0], name
