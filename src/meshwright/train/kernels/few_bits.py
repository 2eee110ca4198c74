"""Frozen weights in few bits: fp8 (e4m3) with a scale for each row, and NF4 with scales for blocks that are themselves in 8 bits.

Scales come from whole rows of the whole matrix, so that the same weights come back for every layout. Products use exactly the weights that
come back: they are made again for each product, forward and backward, in the number format of the products, and are never kept.

NF4 has 16 values, quantiles of a normal distribution (Dettmers et al. 2023, arXiv:2305.14314). A block of 64 elements of a row is scaled
by its largest; the scales of a row are 8-bit parts of the row's largest (double quantisation): 4 + 8/64 + 32/columns bits an element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from meshwright.train.kernels.layer_functions import HAS_KERNELS

if HAS_KERNELS:
    from meshwright.train.kernels import few_bits_kernels

BLOCK = 64  # elements of a row with one scale
ELEMENTS_AT_ONCE = 1 << 24  # that are made together
LEVELS = 255  # of a block's scale
FP8 = torch.float8_e4m3fn
SMALLEST = 1e-30  # for a row of zeros
# The quantiles, as their authors' program has them.
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434,
    0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
EDGES = tuple((low + high) / 2 for low, high in pairwise(NF4))


class Held(NamedTuple):
    """A frozen matrix as tensors: in few bits, or as it is multiplied, without scales."""

    codes: Tensor
    row_scales: Tensor | None = None
    block_scales: Tensor | None = None  # of NF4
    first_column: int = 0  # of the whole matrix that is on this rank

    def weight(self, num_columns: int, dtype: torch.dtype) -> Tensor:
        """The matrix in the number format of the products."""
        if self.row_scales is None:
            return self.codes
        if self.block_scales is None:
            return _from_fp8(self.codes, self.row_scales, dtype)
        return _from_nf4(self.codes, self.block_scales, self.row_scales, (num_columns, self.first_column % BLOCK), dtype)


class FewBits(nn.Module, ABC):
    """A frozen matrix, or a rank's part of one, in few bits."""

    def __init__(self, rows: int, columns: slice, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.num_rows, self.columns, self.dtype = rows, columns, dtype
        self.register_buffer("row_scales", torch.zeros(rows, dtype=torch.float32, device=device), persistent=False)
        self.row_scales: Tensor

    @property
    def num_columns(self) -> int:
        """Columns on this rank."""
        return int(self.columns.stop - self.columns.start)

    @abstractmethod
    def store(self, first: int, whole: Tensor) -> None:
        """Keep rows of the whole matrix, in fp32 and all columns, as the rows from `first` on."""

    @abstractmethod
    def held(self) -> Held:
        """The matrix as tensors."""

    def weight(self) -> Tensor:
        """The matrix in the number format of the products."""
        return self.held().weight(self.num_columns, self.dtype)


class Fp8Weight(FewBits):
    """One byte for each element."""

    def __init__(self, rows: int, columns: slice, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, columns, dtype, device)
        self.register_buffer("codes", torch.zeros(rows, self.num_columns, dtype=FP8, device=device), persistent=False)
        self.codes: Tensor

    def store(self, first: int, whole: Tensor) -> None:
        """Keep rows of the whole matrix."""
        scales = (whole.abs().amax(dim=1) / torch.finfo(FP8).max).clamp_min(SMALLEST)
        rows = slice(first, first + len(whole))
        self.row_scales[rows] = scales
        self.codes[rows] = (whole[:, self.columns] / scales[:, None]).to(FP8)

    def held(self) -> Held:
        """The matrix as tensors."""
        return Held(self.codes, self.row_scales)


class Nf4Weight(FewBits):
    """Half a byte for each element, and one for every block of a row."""

    def __init__(self, rows: int, columns: slice, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, columns, dtype, device)
        self.blocks = slice(columns.start // BLOCK, -(-columns.stop // BLOCK))
        num_blocks = self.blocks.stop - self.blocks.start
        self.register_buffer("codes", torch.zeros(rows, -(-self.num_columns // 2), dtype=torch.uint8, device=device), persistent=False)
        self.register_buffer("block_scales", torch.zeros(rows, num_blocks, dtype=torch.uint8, device=device), persistent=False)
        self.codes: Tensor
        self.block_scales: Tensor

    def store(self, first: int, whole: Tensor) -> None:
        """Keep rows of the whole matrix."""
        padded = F.pad(whole, (0, -whole.shape[1] % BLOCK)).unflatten(1, (-1, BLOCK))
        largest = padded.abs().amax(dim=2)
        row_scales = largest.amax(dim=1).clamp_min(SMALLEST)
        parts = (largest / row_scales[:, None] * LEVELS).round().clamp(1, LEVELS)
        units = padded / (parts * row_scales[:, None] / LEVELS)[:, :, None]
        edges = torch.tensor(EDGES, device=whole.device)
        codes = torch.bucketize(units.clamp(-1, 1), edges).flatten(1)[:, self.columns].to(torch.uint8)
        codes = F.pad(codes, (0, codes.shape[1] % 2))
        rows = slice(first, first + len(whole))
        self.row_scales[rows] = row_scales
        self.block_scales[rows] = parts[:, self.blocks].to(torch.uint8)
        self.codes[rows] = codes[:, ::2] * 16 + codes[:, 1::2]

    def held(self) -> Held:
        """The matrix as tensors."""
        return Held(self.codes, self.row_scales, self.block_scales, self.columns.start)


KINDS: dict[str, type[FewBits]] = {"fp8": Fp8Weight, "nf4": Nf4Weight}


def _from_fp8(codes: Tensor, row_scales: Tensor, dtype: torch.dtype) -> Tensor:
    if HAS_KERNELS and codes.is_cuda:
        return few_bits_kernels.from_fp8(codes, row_scales, dtype)
    return (codes.float() * row_scales[:, None]).to(dtype)


def _from_nf4(codes: Tensor, block_scales: Tensor, row_scales: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """The matrix; without a kernel it is made some rows at a time, because the work between needs several times its memory."""
    values = _values(codes.device)
    if HAS_KERNELS and codes.is_cuda:
        return few_bits_kernels.from_nf4(codes, block_scales, row_scales, values, shape, dtype)
    num_columns, start = shape
    made = torch.empty(len(codes), num_columns, dtype=dtype, device=codes.device)
    step = max(ELEMENTS_AT_ONCE // max(num_columns, 1), 1)
    for first in range(0, len(codes), step):
        rows = slice(first, first + step)
        halves = torch.stack((codes[rows] >> 4, codes[rows] & 15), dim=-1).flatten(1)[:, :num_columns]
        scales = block_scales[rows].float() * row_scales[rows, None] / LEVELS
        made[rows] = values[halves.int()] * scales.repeat_interleave(BLOCK, dim=1)[:, start : start + num_columns]
    return made


@cache
def _values(device: torch.device) -> Tensor:
    """The sixteen values on a device."""
    return torch.tensor(NF4, device=device)
