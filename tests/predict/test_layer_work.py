"""Kinds of layers: the products that the trainer has, and all FLOPs of a token in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.cost.layers import INNER, WHOLE
from meshwright.describe.load import load_model
from meshwright.describe.model import Experts, LatentAttention, Model
from meshwright.predict.layer_work import all_weights, layer_kinds, layers_alike

DENSE = Model(name="a", num_layers=4, hidden=64, ffn_hidden=192, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=100)
EXPERTS = Experts(num_experts=8, num_active=2, hidden=32, num_shared=1, num_dense_layers=1)
LATENT = LatentAttention(query_rank=24, key_value_rank=32, nope_dim=16, rope_dim=8, value_dim=12)


def test_a_dense_model_has_one_kind_of_layer() -> None:
    ((share, work),) = layer_kinds(DENSE)
    assert share == 1.0 and work.visits is None and work.head_width == 16 and (work.turned, work.query, work.ffn) == (128, 64, 192)
    assert {one.name: (one.columns, one.inner, one.split) for one in work.weights} == {
        "qkv": (128, 64, "columns"),
        "projection": (64, 64, INNER),
        "mlp in": (384, 64, "columns"),
        "mlp out": (64, 192, INNER),
    }
    ((_, plain),) = layer_kinds(replace(DENSE, gated=False))
    assert {one.name: one.columns for one in plain.weights}["mlp in"] == 192 and not plain.gated


def test_leading_dense_layers_are_a_kind_of_their_own() -> None:
    (dense_share, dense), (share, routed) = layer_kinds(replace(DENSE, experts=EXPERTS))
    assert (dense_share, share) == (0.25, 0.75) and dense.visits is None and routed.visits is not None
    assert (routed.visits.num_experts, routed.visits.num_active, routed.visits.width) == (8, 2, 32)
    names = [one.name for one in routed.weights]
    assert names == ["qkv", "projection", "router", "shared in", "shared out"] and routed.ffn == 32
    # Every tensor rank has the whole router, and a part of the shared experts.
    assert [one.split for one in routed.weights[2:]] == [WHOLE, "columns", INNER]
    assert len(layer_kinds(layers_alike(replace(DENSE, experts=EXPERTS)))) == 1


def test_latent_attention_has_its_low_rank_products() -> None:
    ((_, work),) = layer_kinds(replace(DENSE, latent=LATENT))
    assert {one.name: (one.columns, one.inner, one.split) for one in work.weights[:5]} == {
        "q down": (24, 64, WHOLE),
        "q up": (96, 24, "columns"),
        "kv down": (40, 64, WHOLE),
        "kv up": (4 * 28, 32, "columns"),
        "o": (64, 48, INNER),
    }
    assert work.head_width == 24 and work.latent == 24 + 32 + 8 and work.query == 48


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b"])
def test_products_of_all_layers_are_all_that_a_token_uses(name: str) -> None:
    model = load_model(name)
    used = 0.0
    for share, work in layer_kinds(model):
        used += share * sum(one.columns * one.inner for one in work.weights)
        if work.visits:
            used += share * work.visits.num_active * 3 * model.hidden * work.visits.width
    assert used == pytest.approx(model.layer_matrix_parameters_per_token)


def test_weights_of_several_kinds_are_named_once() -> None:
    names = [one.name for one in all_weights(replace(DENSE, experts=EXPERTS))]
    assert names == ["qkv", "projection", "mlp in", "mlp out", "router", "shared in", "shared out"]
