"""Weights in few bits made by kernels: bit for bit those that plain operations make."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.kernels.few_bits import BLOCK, KINDS, FewBits, Nf4Weight, _values

SHAPES = [(5, slice(0, 128)), (3, slice(0, 150)), (4, slice(37, 150)), (2, slice(64, 64 + 5000)), (3, slice(149, 150))]


def stored(kind: str, rows: int, columns: slice, dtype: torch.dtype) -> FewBits:
    few = KINDS[kind](rows, columns, dtype, torch.device("cpu"))
    few.store(0, torch.randn(rows, columns.stop + 3, generator=torch.Generator().manual_seed(2)))
    return few


def is_same(found: torch.Tensor, wanted: torch.Tensor, is_interpreted: bool) -> bool:
    """Bit for bit; Triton's interpreter cuts numbers off where they are rounded to bf16."""
    if is_interpreted and found.dtype == torch.bfloat16:
        return torch.allclose(found.float(), wanted.float(), rtol=2**-7, atol=0.0)
    return torch.equal(found, wanted)


@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fp8(rows: int, columns: slice, dtype: torch.dtype, kernel_device: torch.device, is_interpreted: bool) -> None:
    from meshwright.train.kernels.few_bits_kernels import from_fp8

    few = stored("fp8", rows, columns, dtype)
    held = few.held()
    assert held.row_scales is not None
    found = from_fp8(held.codes.to(kernel_device), held.row_scales.to(kernel_device), dtype)
    assert is_same(found.cpu(), few.weight(), is_interpreted)


@pytest.mark.parametrize(("rows", "columns"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nf4(rows: int, columns: slice, dtype: torch.dtype, kernel_device: torch.device, is_interpreted: bool) -> None:
    from meshwright.train.kernels.few_bits_kernels import from_nf4

    few = stored("nf4", rows, columns, dtype)
    assert isinstance(few, Nf4Weight)
    given = (tensor.to(kernel_device) for tensor in (few.codes, few.block_scales, few.row_scales, _values(torch.device("cpu"))))
    found = from_nf4(*given, (few.num_columns, columns.start % BLOCK), dtype)
    assert is_same(found.cpu(), few.weight(), is_interpreted)
