"""Documents of packed sequences as runs of tokens, for kernels that attend within runs.

Kernels need the number of runs and the longest of them before they start. Both are computed on the host from the batch, before it is copied
to a device, so that no step waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Runs of queries, one after another through all sequences, and the run of keys that each attends to; either may be empty."""

    query_lengths: tuple[int, ...]
    key_lengths: tuple[int, ...]
    query_starts: Tensor  # [runs + 1], int32
    key_starts: Tensor

    @property
    def is_hidden(self) -> bool:
        """Whether no query has any key."""
        return not any(queries and keys for queries, keys in zip(self.query_lengths, self.key_lengths, strict=True))

    @property
    def longest_query(self) -> int:
        """Tokens of the longest run of queries."""
        return max(self.query_lengths)

    @property
    def longest_key(self) -> int:
        """Tokens of the longest run of keys."""
        return max(self.key_lengths)

    def moved(self, move: Callable[[Tensor], Tensor]) -> Runs:
        """The same with starts on another device; `move` copies a tensor there."""
        starts = move(self.query_starts)
        return replace(self, query_starts=starts, key_starts=starts if self.key_starts is self.query_starts else move(self.key_starts))


def runs_of(documents: NDArray[np.integer]) -> Runs:
    """Runs of sequences that attend to themselves; documents [B, T], numbers that never fall along a sequence."""
    lengths = _counts(_numbered(documents, documents))
    starts = _starts(lengths)
    return Runs(tuple(lengths.tolist()), tuple(lengths.tolist()), starts, starts)


def runs_between(query_documents: NDArray[np.integer], key_documents: NDArray[np.integer]) -> Runs:
    """Runs of queries [B, T] and of the keys [B, S] in the same documents."""
    numbers = _numbered(query_documents, key_documents), _numbered(key_documents, query_documents)
    documents = np.union1d(*numbers)
    lengths = [_counts(np.searchsorted(documents, each), len(documents)) for each in numbers]
    return Runs(tuple(lengths[0].tolist()), tuple(lengths[1].tolist()), _starts(lengths[0]), _starts(lengths[1]))


def _numbered(documents: NDArray[np.integer], others: NDArray[np.integer]) -> NDArray[np.int64]:
    """Documents numbered through all sequences, [B x T]."""
    most = int(max(documents.max(), others.max())) + 1
    return (np.arange(len(documents))[:, None] * most + documents).reshape(-1).astype(np.int64)


def _counts(numbers: NDArray[np.int64], num_documents: int | None = None) -> NDArray[np.int64]:
    """Tokens of each document that the numbers name; with `num_documents` of each of so many, the others none."""
    if num_documents is not None:
        return np.bincount(numbers, minlength=num_documents)
    return np.unique(numbers, return_counts=True)[1]


def _starts(lengths: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
