"""Zig-zag pieces: every token once, and the same work for every rank; block by block attention equals attention at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import LLAMA, WORKLOAD, joined, run_steps
from ranks import Pools

from meshwright.layout import Layout, parse_layout
from meshwright.train.model.attention import Context, attend, visible
from meshwright.train.parallel.context import (
    Attended,
    Gradients,
    Plan,
    gathered_blocks,
    other_positions,
    positions_of,
    ring_blocks,
    runs_for,
)

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


@law
@given(num_ranks=st.integers(2, 6), piece=st.integers(1, 3), kind=st.sampled_from(["ring", "all-gather"]))
def test_blocks_hold_what_each_token_sees(num_ranks: int, piece: int, kind: str) -> None:
    seq_len, num_tokens = 2 * num_ranks * piece, 2 * piece
    for index in range(num_ranks):
        mine = positions_of(seq_len, num_ranks, index)
        others = other_positions(seq_len, num_ranks, index)
        ring = [positions_of(seq_len, num_ranks, rank) for rank in range(num_ranks)]
        blocks, keys = (
            (ring_blocks(num_tokens, num_ranks, index), ring)
            if kind == "ring"
            else (gathered_blocks(num_tokens, num_ranks, index), [mine, others, others])
        )
        seen = torch.zeros(num_tokens, seq_len, dtype=torch.long)
        for block, where in zip(blocks, keys, strict=True):
            queries, theirs = mine[block.queries], where[block.keys]
            hidden = queries[:, None] < theirs[None, :]
            assert block.causal or not hidden.any()
            assert not block.causal or torch.equal(queries, theirs)
            seen[torch.arange(num_tokens)[block.queries][:, None], theirs[None, :]] += (~hidden).long()
        assert torch.equal(seen, visible(mine, None, torch.arange(seq_len), None)[0, 0].long())  # each key once


DOCUMENTS = np.array([[0] * 2 + [1] * 9 + [2] * 5, [0] * 16, [0] * 5 + [1] + [2] + [3] * 9])


@pytest.mark.parametrize("kind", ["ring", "all-gather"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("index", range(4))
def test_attention_joined_block_by_block_equals_attention_at_once(kind: str, packed: bool, index: int) -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(3, 16, count, 4, generator=generator).requires_grad_() for count in (4, 2, 2)]
    documents = torch.from_numpy(DOCUMENTS) if packed else None
    whole = attend(*inputs, Context(positions=torch.arange(16), documents=documents))
    mine = positions_of(16, 4, index)
    d_out = torch.zeros_like(whole)
    d_out[:, mine] = torch.randn(3, 4, 4, 4, generator=generator)
    wanted = torch.autograd.grad(whole, inputs, d_out)

    query, key, value = (x.detach() for x in inputs)
    runs = runs_for(kind, DOCUMENTS, 4, index) if packed else None
    if kind == "ring":
        plan, where = Plan(ring_blocks(4, 4, index), runs=runs), [positions_of(16, 4, rank) for rank in range(4)]
    else:
        others = other_positions(16, 4, index)
        plan, where = Plan(gathered_blocks(4, 4, index), runs=runs), [mine, others, others]
    order = sorted(range(len(plan.blocks)), key=lambda number: not plan.blocks[number].causal)  # a rank's own keys come first
    attended = Attended(query[:, mine], plan)
    for number in order:
        attended.add(number, key[:, where[number]], value[:, where[number]])
    out, log_sums = attended.result()
    torch.testing.assert_close(out, whole[:, mine].detach(), rtol=1e-5, atol=1e-6)

    found = Gradients(d_out[:, mine], query[:, mine], out, log_sums, plan)
    d_keys = torch.zeros(2, *key.shape)
    for number in order:
        d_seen = found.of(number, key[:, where[number]], value[:, where[number]])
        if d_seen is not None:
            d_keys[:, :, where[number][plan.blocks[number].keys]] += d_seen
    for ours, theirs in zip((found.d_query, *d_keys), (wanted[0][:, mine], *wanted[1:]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_blocks_without_a_common_document_are_left_out() -> None:
    each = np.repeat(np.arange(8), 2)[None]  # every piece is a document of its own
    assert [runs is None for runs in runs_for("ring", each, 4, 1)] == [True, False, True, True]
    assert [runs is None for runs in runs_for("all-gather", each, 4, 1)] == [False, True, True]
    assert len(runs_for("all-to-all", each, 4, 1)) == len(runs_for("ring", each, 1, 0)) == 1


@pytest.mark.parametrize("kind", ["ring", "all-gather", "all-to-all"])
def test_bf16_over_ranks_is_near_fp32_of_one(kind: str, pools: Pools) -> None:
    layout = parse_layout(f"cp=2,cp_kind={kind},mbs=4")
    workload = replace(WORKLOAD, precision="bf16")
    wanted = joined(pools.of(1).run(run_steps, LLAMA, WORKLOAD, Layout(micro_batch=8), 1))
    found = joined(pools.of(2).run(run_steps, LLAMA, workload, layout, 1))
    assert found.losses == pytest.approx(wanted.losses, rel=5e-3)
    assert found.norms == pytest.approx(wanted.norms, rel=2e-2)
