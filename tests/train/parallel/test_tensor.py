"""Cuts, and the loss of a cut vocabulary."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from on_ranks import kept_in_forward, loss_of_cut_vocabulary
from parity import GPT, LLAMA, WORKLOAD
from ranks import Pools

from meshwright.layout import parse_layout
from meshwright.train.data.samples import IGNORED_LABEL
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.shards import cuts_of
from meshwright.train.parallel.tensor import cut_dim, split


@pytest.mark.parametrize("tp", [2, 4])
def test_loss_of_a_cut_vocabulary_equals_cross_entropy(tp: int, pools: Pools) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 8 * torch.randn(2, 5, 24, generator=generator)
    labels = torch.randint(0, 24, (2, 5), generator=generator)
    labels[0, 1] = labels[1, 3] = IGNORED_LABEL
    whole = logits.clone().requires_grad_()
    wanted = F.cross_entropy(whole.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")
    (3 * wanted).backward()
    found = pools.of(tp).run(loss_of_cut_vocabulary, logits.numpy(), labels.numpy(), 3.0)
    assert [loss for loss, _ in found] == pytest.approx([wanted.item()] * tp, rel=1e-6)
    gradient = torch.cat([torch.from_numpy(part) for _, part in found], dim=-1)
    torch.testing.assert_close(gradient, whole.grad)
    assert not gradient[0, 1].any()  # an ignored label has no gradient


@pytest.mark.parametrize(
    "vocab_size", [21, 18, 13]
)  # of 24: the last of four ranks has three entries of padding, six, or with others eleven
def test_padding_has_no_share_in_the_loss_and_no_gradient(vocab_size: int, pools: Pools) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = 8 * torch.randn(2, 5, 24, generator=generator)
    logits[..., vocab_size:] = 1e4
    labels = torch.randint(0, vocab_size, (2, 5), generator=generator)
    labels[0, 1] = IGNORED_LABEL
    true = logits[..., :vocab_size].clone().requires_grad_()
    wanted = F.cross_entropy(true.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")
    wanted.backward()
    found = pools.of(4).run(loss_of_cut_vocabulary, logits.numpy(), labels.numpy(), 1.0, vocab_size)
    assert [loss for loss, _ in found] == pytest.approx([wanted.item()] * 4, rel=1e-6)
    gradient = torch.cat([torch.from_numpy(part) for _, part in found], dim=-1)
    torch.testing.assert_close(gradient[..., :vocab_size], true.grad)
    assert not gradient[..., vocab_size:].any()


def test_large_logits_do_not_overflow(pools: Pools) -> None:
    logits = torch.tensor([[[1000.0, 0.0, -1000.0, 999.0]]])
    found = pools.of(2).run(loss_of_cut_vocabulary, logits.numpy(), torch.tensor([[3]]).numpy(), 1.0)
    assert [loss for loss, _ in found] == pytest.approx([float(F.cross_entropy(logits[0], torch.tensor([3])))] * 2)


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=lambda model: model.name)
def test_matrices_are_cut_and_what_stands_between_blocks_is_not(model) -> None:
    with torch.device("meta"):
        names = {name: parameter.dim() for name, parameter in Transformer(model).named_parameters()}
    whole = {name for name in names if cut_dim(name) is None}
    assert all("norm" in name or name.endswith(("o.bias", "down.bias", "embed.positions")) for name in whole)
    assert all(cut_dim(name) == (1 if name.endswith(("o.weight", "down.weight")) else 0) for name in names.keys() - whole)


@pytest.mark.parametrize("tp, starts", [(2, [0, 12]), (4, [0, 6, 12, 18]), (12, [0, 0, 0, 6, 6, 6, 12, 12, 12, 18, 18, 18])])
def test_ranks_beyond_the_key_value_heads_hold_copies(tp: int, starts: list[int]) -> None:
    few = replace(LLAMA, num_heads=12, num_kv_heads=4, head_dim=6, ffn_hidden=48)
    found = []
    for index in range(tp):
        axis = SimpleNamespace(size=tp, index=index)
        with torch.device("meta"):
            chunk = Transformer(few)
        split(chunk, axis)
        query, key, value = cuts_of(chunk, axis, axis, 1)["layers.0.attention.qkv.weight"]
        assert (query.shape, key.shape, value.shape) == ((72, 32), (24, 32), (24, 32))
        assert query.start == (72 // tp * index, 0) and key.start == value.start
        assert key.local == (max(24 // tp, 6), 32)
        found.append(key.start[0])
    assert found == starts


@pytest.mark.parametrize("model", [LLAMA, GPT], ids=lambda model: model.name)
@pytest.mark.parametrize("precision", ["fp32", "fp8-current"])
def test_a_rank_keeps_its_part_of_hidden_states_and_none_of_the_others(model, precision: str, pools: Pools) -> None:
    model = replace(model, ffn_hidden=96, head_dim=16)  # no half of a layer's width is that of hidden states
    workload, tokens, hidden = replace(WORKLOAD, precision=precision), WORKLOAD.seq_len, model.hidden
    for kept in pools.of(2).run(kept_in_forward, model, workload, parse_layout("tp=2,mbs=2")):
        assert not {(2, tokens, hidden), (2 * tokens, hidden)} & kept.keys()
        assert kept[2, tokens // 2, hidden] >= 2 * model.num_layers  # inputs of the products of each layer


def test_a_layer_that_is_computed_again_keeps_what_it_has_gathered() -> None:
    with torch.device("meta"):
        chunk = Transformer(LLAMA)
    split(chunk, SimpleNamespace(size=2, index=0), keeps_inputs=True)
    products = [product for block in chunk.blocks() for product in (block.attention.qkv, block.mlp.into)]
    assert all(product.multiply.keeps for product in products)
    assert all(block.mlp.down.multiply.__name__ == "product" for block in chunk.blocks())
