"""Sums of squares: those of fp64, the same bits every time, by a kernel on a GPU and by torch elsewhere."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.parallel.shards import squares_of


def drawn(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]


def exact(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([x.double().square().sum() for x in tensors])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_are_those_of_fp64_and_repeat_bit_by_bit(dtype: torch.dtype, kernel_device: torch.device, is_interpreted: bool) -> None:
    from meshwright.train.kernels.square_kernel import BLOCK, PROGRAMS, square_sums

    large = 3 * BLOCK + 1 if is_interpreted else PROGRAMS * BLOCK * 2 + 77  # each program adds up several blocks
    tensors = drawn((1, 77, BLOCK, BLOCK + 1, large), dtype, kernel_device)
    found = square_sums(tensors)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, exact(tensors), rtol=1e-5, atol=0)
    assert torch.equal(found, square_sums(tensors))


def test_one_programs_blocks_are_added_up(kernel_device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    from meshwright.train.kernels import square_kernel

    monkeypatch.setattr(square_kernel, "PROGRAMS", 2)
    (values,) = tensors = drawn((5 * square_kernel.BLOCK - 3,), torch.float32, kernel_device)
    torch.testing.assert_close(square_kernel.square_sums(tensors), exact(tensors), rtol=1e-5, atol=0)
    assert square_kernel.square_sums([torch.full_like(values, 2.0)]).item() == 4.0 * values.numel()


def test_what_is_no_number_shows_in_its_own_sum_alone(kernel_device: torch.device) -> None:
    from meshwright.train.kernels.square_kernel import square_sums

    tensors = drawn((100, 100), torch.float32, kernel_device)
    tensors[0][3] = torch.nan
    found = square_sums(tensors)
    assert bool(found[0].isnan()) and found[1].item() == pytest.approx(exact(tensors)[1].item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_processor_torch_sums_the_same(dtype: torch.dtype) -> None:
    tensors = drawn((1, 77, 8192, 100_003), dtype, "cpu")
    torch.testing.assert_close(squares_of(tensors), exact(tensors), rtol=1e-5, atol=0)
    assert torch.equal(squares_of(tensors), squares_of(tensors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_and_largest_values_come_with_them(dtype: torch.dtype, kernel_device: torch.device) -> None:
    from meshwright.train.kernels.square_kernel import BLOCK, measures

    tensors = drawn((1, 77, 2 * BLOCK + 1), dtype, kernel_device)
    squares, sums, largest = measures(tensors).unbind(dim=1)
    torch.testing.assert_close(squares, exact(tensors), rtol=1e-5, atol=0)
    torch.testing.assert_close(sums, torch.stack([x.double().sum() for x in tensors]), rtol=0, atol=1e-3)
    assert largest.tolist() == [float(x.abs().max()) for x in tensors]
