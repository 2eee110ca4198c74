"""Frozen weights in few bits: fp8 (e4m3) with a scale for each row, and NF4 with scales for blocks that are themselves in 8 bits.

Scales come from whole rows of the whole matrix, so that the same weights come back for every layout. Products use exactly the weights that
come back: they are made again for each product, forward and backward, in the number format of the products, and are never kept.

NF4 has 16 values, quantiles of a normal distribution (Dettmers et al. 2023, arXiv:2305.14314). A block of 64 elements of a row is scaled
by its largest; the scales of a row are 8-bit parts of the row's largest (double quantisation): 4 + 8/64 + 32/columns bits an element.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
    def weight(self) -> Tensor:
        """The matrix in the number format of the products."""


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

    def weight(self) -> Tensor:
        """The matrix in the number format of the products."""
        return (self.codes.float() * self.row_scales[:, None]).to(self.dtype)


class Nf4Weight(FewBits):
    """Half a byte for each element, and one for every block of a row."""

    def __init__(self, rows: int, columns: slice, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(rows, columns, dtype, device)
        self.blocks = slice(columns.start // BLOCK, -(-columns.stop // BLOCK))
        num_blocks = self.blocks.stop - self.blocks.start
        self.register_buffer("codes", torch.zeros(rows, -(-self.num_columns // 2), dtype=torch.uint8, device=device), persistent=False)
        self.register_buffer("block_scales", torch.zeros(rows, num_blocks, dtype=torch.uint8, device=device), persistent=False)
        self.register_buffer("values", torch.tensor(NF4, device=device), persistent=False)
        self.codes: Tensor
        self.block_scales: Tensor
        self.values: Tensor

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

    def weight(self) -> Tensor:
        """The matrix in the number format of the products, made some rows at a time: the work between needs several times its memory."""
        made = torch.empty(self.num_rows, self.num_columns, dtype=self.dtype, device=self.codes.device)
        step = max(ELEMENTS_AT_ONCE // max(self.num_columns, 1), 1)
        for first in range(0, self.num_rows, step):
            rows = slice(first, first + step)
            made[rows] = self._rows(rows)
        return made

    def _rows(self, rows: slice) -> Tensor:
        codes = self.codes[rows]
        pairs = torch.stack((codes >> 4, codes & 15), dim=-1).flatten(1)[:, : self.num_columns]
        scales = self.block_scales[rows].float() * self.row_scales[rows, None] / LEVELS
        start = self.columns.start % BLOCK
        each = scales.repeat_interleave(BLOCK, dim=1)[:, start : start + self.num_columns]
        return self.values[pairs.int()] * each


KINDS: dict[str, type[FewBits]] = {"fp8": Fp8Weight, "nf4": Nf4Weight}


class _Product(torch.autograd.Function):
    """`x @ weight.T` of a frozen weight that is made for each product: the backward makes it again, and needs nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: FewBits) -> Tensor:
        ctx.held = held
        return F.linear(x, held.weight())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient @ ctx.held.weight(), None


def product(x: Tensor, held: FewBits) -> Tensor:
    """The product with a frozen weight in few bits."""
    out: Tensor = _Product.apply(x, held)
    return out
