"""Attention in a band: a token sees only the nearest earlier ones. The arithmetic is written out in fp32, a tile of queries at a time.

A tile attends only to the keys that its window reaches, so that memory and work grow with the window and not with the square of the
sequence. It works on any device. Where queries and keys are pieces of a sequence that begin at different positions, the difference is the
band's shift.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from meshwright.train.kernels.attention_kernels import Gradients, Kernel, Part, written_backward, written_forward

TILE = 256  # queries at a time
Documents = tuple[Tensor, Tensor]  # of queries [B, T] and of keys [B, S]


@dataclass(frozen=True, slots=True)
class Band:
    """Which keys a query sees: query `i` sees key `j` if `i + shift - j` is at least 0 and less than `window`."""

    window: int
    shift: int = 0

    def tiles(self, num_queries: int, num_keys: int) -> Iterator[tuple[slice, slice]]:
        """Queries, tile by tile, and the keys that any of them sees; tiles without keys are left out."""
        for first in range(0, num_queries, TILE):
            last = min(first + TILE, num_queries)
            keys = slice(max(first + self.shift - self.window + 1, 0), min(last + self.shift, num_keys))
            if keys.start < keys.stop:
                yield slice(first, last), keys

    def hidden(self, queries: slice, keys: slice, device: torch.device) -> Tensor:
        """Whether a query of a tile does not see a key; [queries, keys]."""
        ahead = torch.arange(queries.start, queries.stop, device=device)[:, None] + self.shift
        distance = ahead - torch.arange(keys.start, keys.stop, device=device)[None, :]
        return (distance < 0) | (distance >= self.window)


def banded(query: Tensor, key: Tensor, value: Tensor, band: Band, documents: Documents | None = None) -> Part:
    """Attention to the keys in the band, and in the same document. Rows without any key are zero, their log-sum-exp minus infinity."""
    out = torch.zeros_like(query)
    log_sums = query.new_full((query.shape[0], query.shape[2], query.shape[1]), float("-inf"), dtype=torch.float32)
    for queries, keys in band.tiles(query.shape[1], key.shape[1]):
        hidden = _hidden(band, queries, keys, query.device, documents)
        out[:, queries], log_sums[..., queries] = written_forward(query[:, queries], key[:, keys], value[:, keys], hidden)
    return out, log_sums


def banded_back(
    d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, band: Band, documents: Documents | None = None
) -> Gradients:
    """What these keys add to the gradients, in fp32; `out` and `log_sums` are those of attention to all keys."""
    d_query, d_key, d_value = (torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value))
    for queries, keys in band.tiles(query.shape[1], key.shape[1]):
        hidden = _hidden(band, queries, keys, query.device, documents)
        inputs = d_out[:, queries], query[:, queries], key[:, keys], value[:, keys], out[:, queries], log_sums[..., queries]
        found = written_backward(*inputs, hidden)
        d_query[:, queries] += found[0]
        d_key[:, keys] += found[1]
        d_value[:, keys] += found[2]
    return d_query, d_key, d_value


def _hidden(band: Band, queries: slice, keys: slice, device: torch.device, documents: Documents | None) -> Tensor:
    """Which keys of a tile are hidden, to be compared with scores [B, keys, groups, T, S]."""
    hidden = band.hidden(queries, keys, device)
    if documents is None:
        return hidden
    of_queries, of_keys = documents[0][:, queries, None], documents[1][:, None, keys]
    return (hidden | (of_queries != of_keys))[:, None, None]


@cache
def banded_of(window: int) -> Kernel:
    """The kernel of causal attention with a window, for tokens of whole sequences or documents."""
    band = Band(window)

    def forward(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Part:
        assert causal, "a window ends at the token itself"
        return banded(query, key, value, band)

    def backward(d_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_sums: Tensor, causal: bool) -> Gradients:
        assert causal, "a window ends at the token itself"
        return banded_back(d_out, query, key, value, out, log_sums, band)

    return Kernel("written out in tiles", forward, backward)
