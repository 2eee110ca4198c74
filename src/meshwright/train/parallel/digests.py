"""Digests of the state that replicas hold alike: a small part each step, so that all of it is compared within a fixed number of steps.

A digest is the sum of the bits of the numbers, read as whole numbers. Any single bit that differs changes it. It is computed on the device,
and sent with the sum of the step, so nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

NUM_PARTS = 64  # steps in which all of the state is compared
DIGEST_BITS = 52  # that a float64 holds exactly
WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class Digests:
    """The digests of flat tensors, part by part. All replicas must ask for them equally often."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = [tensor.detach().view(-1) for tensor in tensors]
        self._part = 0

    def next(self) -> Tensor:
        """The digest of the next part, as a whole number in fp64."""
        part, self._part = self._part, (self._part + 1) % NUM_PARTS
        sums = [piece.view(WHOLE_NUMBERS[piece.element_size()]).sum(dtype=torch.int64) for piece in self._pieces(part)]
        if not sums:
            return torch.zeros((), dtype=torch.float64, device=self.tensors[0].device if self.tensors else "cpu")
        return (torch.stack(sums).sum() & ((1 << DIGEST_BITS) - 1)).double()

    def _pieces(self, part: int) -> Iterator[Tensor]:
        """The elements of one part: those that lie in its share when all tensors are put one after another."""
        total = sum(tensor.numel() for tensor in self.tensors)
        first, last = total * part // NUM_PARTS, total * (part + 1) // NUM_PARTS
        for tensor in self.tensors:
            begin, end = max(first, 0), min(last, tensor.numel())
            if begin < end:
                yield tensor[begin:end]
            first, last = first - tensor.numel(), last - tensor.numel()
