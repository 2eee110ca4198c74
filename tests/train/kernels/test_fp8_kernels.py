"""Rounding to fp8 by tiles: the numbers that torch's own cast gives, as they stand and turned over, and what they are made of again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meshwright.train.kernels.fp8 import GRADIENT, INPUT, unit_of

GPU = torch.device("cuda")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: Triton's interpreter loses the carry of a cast to fp8")
SHAPES = [(64, 128), (48, 208), (1, 16), (130, 70), (65, 129)]  # whole tiles, and parts of them


def drawn(*shape: int, device: torch.device, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def rounded(values: Tensor, unit: Tensor, dtype: torch.dtype) -> Tensor:
    """Plainly: in units of `unit`, within the format's range, by torch's cast."""
    largest = torch.finfo(dtype).max
    return (values.float() * (1.0 / unit)).clamp(-largest, largest).to(dtype)


def is_same(found: Tensor, wanted: Tensor) -> bool:
    return found.shape == wanted.shape and found.dtype == wanted.dtype and torch.equal(found.float(), wanted.float())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [INPUT, GRADIENT], ids=str)
@needs_gpu
def test_either_orientation_is_torchs_own_cast(shape: tuple[int, int], dtype: torch.dtype) -> None:
    from meshwright.train.kernels.fp8_kernels import fp8_both, fp8_straight, fp8_turned

    source = drawn(*shape, device=GPU)
    unit = unit_of(source, dtype)
    wanted = rounded(source, unit, dtype)
    assert is_same(fp8_straight(source, unit, dtype), wanted)
    assert is_same(fp8_turned(source, unit, dtype), wanted.T)
    straight, turned = fp8_both(source, unit, dtype)
    assert is_same(straight, wanted) and is_same(turned, wanted.T) and turned.is_contiguous()


@needs_gpu
def test_what_is_too_large_is_the_largest_and_what_is_no_number_stays_none() -> None:
    from meshwright.train.kernels.fp8_kernels import fp8_straight

    source = torch.tensor([[1e4, -1e4, 0.0, float("nan"), 1.0]], device=GPU, dtype=torch.bfloat16)
    found = fp8_straight(source, torch.ones((), device=GPU), INPUT).float()[0].tolist()
    assert found[:3] == [448.0, -448.0, 0.0] and found[3] != found[3] and found[4] == 1.0


@needs_gpu
def test_turned_over_into_a_place_whose_rows_are_further_apart() -> None:
    from meshwright.train.kernels.fp8_kernels import round_into

    source = drawn(30, 20, device=GPU)
    unit = unit_of(source, INPUT)
    room = torch.zeros(20, 64, device=GPU).to(INPUT)
    straight = round_into(source, unit, room[:, 16:46])
    wanted = rounded(source, unit, INPUT)
    assert is_same(straight, wanted) and torch.equal(room[:, 16:46].float(), wanted.float().T)
    assert not bool(room[:, :16].float().any()) and not bool(room[:, 46:].float().any())  # nothing beside it is touched


@pytest.mark.parametrize("shape", [(2, 33, 96), (1, 130, 70), (3, 16)], ids=str)
@needs_gpu
def test_a_norm_is_made_again_turned_over(shape: tuple[int, ...]) -> None:
    from meshwright.train.kernels.fp8_kernels import fp8_norm_turned

    x, weight = drawn(*shape, device=GPU), drawn(shape[-1], device=GPU, seed=2)
    scale = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + 1e-5)
    normed = (x.float() * scale * weight.float()).to(torch.bfloat16)
    unit = unit_of(normed, INPUT)
    found = fp8_norm_turned(x, scale, weight, unit, INPUT)
    assert is_same(found, rounded(normed.flatten(0, -2), unit, INPUT).T)


@pytest.mark.parametrize("shape", [(2, 33, 96), (1, 130, 70), (3, 16)], ids=str)
@needs_gpu
def test_a_gate_is_made_again_turned_over(shape: tuple[int, ...]) -> None:
    from meshwright.train.kernels.fp8_kernels import fp8_gate_turned

    gate_up = drawn(*shape[:-1], 2 * shape[-1], device=GPU)
    gate, up = gate_up.float().chunk(2, dim=-1)
    inner = (F.silu(gate) * up).to(torch.bfloat16)
    unit = unit_of(inner, INPUT)
    found = fp8_gate_turned(gate_up, unit, INPUT).float()
    wanted = rounded(inner.flatten(0, -2), unit, INPUT).float().T
    # silu's last bit may fall the other way where two programs compute it: then a number is one step of the format off, and seldom
    assert found.shape == wanted.shape and bool(((found - wanted).abs() <= 0.13 * wanted.abs() + 2.0**-9).all())
    assert float((found != wanted).float().mean()) < 0.01


@pytest.mark.parametrize("dtype", [INPUT, GRADIENT], ids=str)
def test_a_unit_takes_the_largest_element_to_the_largest_number(dtype: torch.dtype) -> None:
    source = drawn(9, 7, device=torch.device("cpu"))
    unit = unit_of(source, dtype)
    assert rounded(source, unit, dtype).float().abs().max().item() == torch.finfo(dtype).max


@pytest.mark.parametrize("shape", [(1, 16), (3, 5, 48)], ids=str)
def test_rows_are_rounded_as_by_plain_operations(shape: tuple[int, ...], kernel_device: torch.device, is_interpreted: bool) -> None:
    from meshwright.train.kernels.fp8_kernels import round_rows
    from meshwright.train.kernels.grouped_fp8 import NARROW, rounded

    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x[0] = 0.0
    found, units = round_rows(x.to(kernel_device), NARROW, 1e-30)
    wanted, wanted_units = rounded(x)
    assert torch.allclose(units.cpu(), wanted_units)
    right, ours = wanted.float(), found.float().cpu()
    if is_interpreted:  # the interpreter loses the carry where rounding up ends at a power of two, and rounds ties its own way
        carried = torch.frexp(right).mantissa.abs() == 0.5
        ours = torch.where(carried, right, ours)
    assert torch.allclose(ours, right, rtol=2**-3)  # one step, where a division is not exact
