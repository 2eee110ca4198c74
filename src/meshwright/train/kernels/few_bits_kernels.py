"""Weights in few bits made into the number format of the products, in one pass on a GPU: codes are read once, weights written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096  # of a row that one program makes
LEVELS: tl.constexpr = tl.constexpr(255.0)  # of a block's scale, as in `few_bits`


@triton.jit
def _from_fp8(
    codes: tl.tensor, row_scales: tl.tensor, made: tl.tensor, width: tl.tensor, num_blocks: tl.tensor, BLOCK: tl.constexpr
) -> None:
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    column = program % num_blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(codes + row * width + column, mask=inside).to(tl.float32) * tl.load(row_scales + row)
    tl.store(made + row * width + column, value.to(made.dtype.element_ty), mask=inside)


@triton.jit
def _from_nf4(
    codes: tl.tensor,
    block_scales: tl.tensor,
    row_scales: tl.tensor,
    values: tl.tensor,
    made: tl.tensor,
    width: tl.tensor,
    num_bytes: tl.tensor,
    num_scales: tl.tensor,
    start: tl.tensor,
    num_blocks: tl.tensor,
    SCALED: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    program = tl.program_id(0)
    row = (program // num_blocks).to(tl.int64)
    byte = program % num_blocks * HALF + tl.arange(0, HALF)
    pair = tl.load(codes + row * num_bytes + byte, mask=byte < num_bytes, other=0).to(tl.int32)
    row_scale = tl.load(row_scales + row)
    scales = block_scales + row * num_scales
    first, second = 2 * byte, 2 * byte + 1  # columns of the two halves of a byte
    scale = tl.load(scales + (start + first) // SCALED, mask=first < width, other=0).to(tl.float32)
    high = tl.load(values + (pair >> 4)) * tl.div_rn(scale * row_scale, LEVELS)
    scale = tl.load(scales + (start + second) // SCALED, mask=second < width, other=0).to(tl.float32)
    low = tl.load(values + (pair & 15)) * tl.div_rn(scale * row_scale, LEVELS)
    column = program % num_blocks * 2 * HALF + tl.arange(0, 2 * HALF)
    tl.store(made + row * width + column, tl.interleave(high, low).to(made.dtype.element_ty), mask=column < width)


def from_fp8(codes: Tensor, row_scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix of bytes with a scale for each row."""
    rows, width = codes.shape
    made = torch.empty(rows, width, dtype=dtype, device=codes.device)
    block = min(triton.next_power_of_2(width), ELEMENTS)
    num_blocks = triton.cdiv(width, block)
    _from_fp8[(rows * num_blocks,)](codes, row_scales, made, width, num_blocks, BLOCK=block, num_warps=8)
    return made


def from_nf4(codes: Tensor, block_scales: Tensor, row_scales: Tensor, values: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The matrix of half bytes; `shape`: columns of the matrix, and how many elements before the first its block begins."""
    rows, (width, start) = len(codes), shape
    made = torch.empty(rows, width, dtype=dtype, device=codes.device)
    half = min(triton.next_power_of_2(codes.shape[1]), ELEMENTS // 2)
    num_blocks = triton.cdiv(codes.shape[1], half)
    _from_nf4[(rows * num_blocks,)](
        codes, block_scales, row_scales, values, made, width, codes.shape[1], block_scales.shape[1], start, num_blocks,
        SCALED=64, HALF=half, num_warps=8,
    )  # fmt: skip
    return made
