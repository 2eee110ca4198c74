from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from meshwright.train.kernels import grouped
from meshwright.train.kernels.grouped import LOOP, OWN, TORCH, GroupedArithmetic, GroupedLinear, arithmetic_for, fitting, is_right
from meshwright.train.kernels.linear import PutOff

CPU = torch.device("cpu")


def layer_of(num_groups: int) -> GroupedLinear:
    layer = GroupedLinear(num_groups, 5, 7, bias=False)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layer


@pytest.mark.parametrize("counts", [(2, 0, 3), (0, 0, 0), (0, 4, 0), (1, 1, 1)])
def test_each_row_meets_the_matrix_of_its_group(counts: tuple[int, ...]) -> None:
    layer = layer_of(3)
    rows = torch.randn(sum(counts), 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
    groups = [group for group, count in enumerate(counts) for _ in range(count)]
    matrices = layer.weight.view(3, 7, 5)
    wanted = [matrices[group] @ row for group, row in zip(groups, rows, strict=True)]
    found = layer(rows, torch.tensor(counts))
    assert torch.allclose(found, torch.stack(wanted) if wanted else torch.empty(0, 7), atol=1e-5)
    found.square().sum().backward()
    assert layer.weight.grad is not None and not layer.weight.grad.isnan().any()
    assert [bool(part.abs().max() > 0) for part in layer.weight.grad.view(3, -1)] == [count > 0 for count in counts]
    if wanted:
        of_plain = torch.autograd.grad(torch.stack(wanted).square().sum(), [rows, layer.weight])
        assert torch.allclose(rows.grad, of_plain[0], atol=1e-4) and torch.allclose(layer.weight.grad, of_plain[1], atol=1e-4)


def test_a_postponed_gradient_is_the_same() -> None:
    layer, counts = layer_of(2), torch.tensor([1, 3])
    rows = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    layer(rows, counts).sum().backward()
    wanted, layer.weight.grad = layer.weight.grad, None
    layer.put_off = PutOff()
    layer(rows.requires_grad_(), counts).sum().backward()
    assert layer.weight.grad is None
    with torch.no_grad():
        ((parameter, gradient),) = [compute() for compute in layer.put_off.take()]
    assert parameter is layer.weight and torch.equal(gradient, wanted)


def _unwritten(gradient: torch.Tensor, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    made = LOOP.to_weight(gradient, rows, counts)
    made[counts == 0] = torch.nan
    return made


def _refused(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("not on this device")


def _stuck(rows: torch.Tensor, weight: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    if not len(rows):
        raise RuntimeError("no rows")
    return LOOP.forward(rows, weight, counts)


FAULTS: dict[str, GroupedArithmetic] = {
    "gradients of empty groups are not written": replace(LOOP, to_weight=_unwritten),
    "products are not there": replace(LOOP, forward=_refused),
    "products of no rows are not there": replace(LOOP, forward=_stuck),
    "products are wrong": replace(LOOP, forward=lambda rows, weight, counts: 1.1 * LOOP.forward(rows, weight, counts)),
}


@pytest.mark.parametrize("arithmetic", FAULTS.values(), ids=FAULTS)
def test_the_trial_finds_products_that_are_wrong(arithmetic: GroupedArithmetic) -> None:
    assert is_right(LOOP, CPU, torch.bfloat16)
    assert not is_right(arithmetic, CPU, torch.bfloat16)


def test_a_processor_uses_the_loop() -> None:
    assert arithmetic_for(CPU, torch.float32) is LOOP


@pytest.mark.parametrize(
    ("capability", "dtype", "wanted"),
    [
        ((9, 0), torch.bfloat16, TORCH),
        ((10, 0), torch.bfloat16, TORCH),
        ((9, 0), torch.float32, OWN),
        ((8, 0), torch.bfloat16, OWN),
        ((12, 0), torch.bfloat16, OWN),
    ],
)
def test_torch_is_asked_only_where_its_product_is_one_kernel(
    capability: tuple[int, int], dtype: torch.dtype, wanted: GroupedArithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(grouped, "is_right", lambda *_: True)
    monkeypatch.setattr(grouped, "HAS_KERNELS", True)
    monkeypatch.setattr(grouped, "unaligned_arithmetic_for", grouped.unaligned_arithmetic_for.__wrapped__)
    assert arithmetic_for.__wrapped__(torch.device("cuda"), dtype) is wanted


def test_rows_that_torch_cannot_take_go_to_another_product() -> None:
    whole = torch.zeros(6, 16, dtype=torch.bfloat16)
    shifted = torch.zeros(6 * 16 + 1, dtype=torch.bfloat16)[1:].view(6, 16)
    assert fitting(TORCH, whole, whole.view(2, 3, 16)) is TORCH
    assert fitting(TORCH, whole, whole[:, :12].contiguous()) is LOOP  # a row of 24 bytes
    assert fitting(TORCH, whole, shifted) is LOOP
    assert fitting(OWN, shifted) is OWN


def test_no_rows_give_no_products_and_gradients_of_zeros() -> None:
    rows, counts = torch.empty(0, 16), torch.zeros(3, dtype=torch.int64)
    assert TORCH.forward(rows, torch.ones(3, 8, 16), counts).shape == (0, 8)
    assert torch.equal(TORCH.to_weight(torch.empty(0, 8), rows, counts), torch.zeros(3, 8, 16))
