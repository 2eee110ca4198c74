"""Zig-zag pieces: every token once, and the same work for every rank; block by block attention equals attention at once."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.train.model.transformer import visible
from meshwright.train.parallel.context import _join, block_scores, positions_of

law = settings(deadline=None, max_examples=60)


@law
@given(num_ranks=st.integers(1, 8), piece=st.integers(1, 5))
def test_every_position_is_on_one_rank(num_ranks: int, piece: int) -> None:
    seq_len = 2 * num_ranks * piece
    held = torch.cat([positions_of(seq_len, num_ranks, index) for index in range(num_ranks)])
    assert sorted(held.tolist()) == list(range(seq_len))


@law
@given(num_ranks=st.integers(1, 8), piece=st.integers(1, 5))
def test_every_rank_has_as_many_visible_pairs_of_query_and_key(num_ranks: int, piece: int) -> None:
    seq_len = 2 * num_ranks * piece
    everyones = torch.arange(seq_len)
    pairs = {int(visible(positions_of(seq_len, num_ranks, index), None, everyones, None).sum()) for index in range(num_ranks)}
    assert pairs == {seq_len * (seq_len + 1) // 2 // num_ranks}


def test_pieces_in_a_row_would_not_balance() -> None:
    counts = [int(visible(part, None, torch.arange(16), None).sum()) for part in torch.arange(16).chunk(2)]
    assert counts == [36, 100]


def test_attention_joined_block_by_block_equals_attention_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 1, 12, 4, generator=generator) for _ in range(3))
    seen = torch.ones(12, 12, dtype=torch.bool).tril()[None, None, None]
    whole = torch.softmax(block_scores(q, k, seen, 0.5), dim=-1) @ v
    out, largest, total = torch.zeros_like(q), q.new_full(q.shape[:-1], float("-inf")), q.new_zeros(q.shape[:-1])
    for block in (slice(8, 12), slice(0, 4), slice(4, 8)):  # the first hides all keys from most queries
        out, largest, total = _join(block_scores(q, k[..., block, :], seen[..., block], 0.5), v[..., block, :], out, largest, total)
    torch.testing.assert_close(out / total[..., None], whole)
