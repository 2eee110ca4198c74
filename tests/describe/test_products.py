"""The products of a layer in their order: their FLOPs are the model's, and every second one is repeated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.describe.load import load_model, names
from meshwright.describe.model import Model
from meshwright.describe.products import attention_products, mlp_products, repeated

LLAMA, DEEPSEEK = load_model("llama-3.1-8b"), load_model("deepseek-v3")


def repeated_share(model: Model) -> float:
    products = (*attention_products(model), *mlp_products(model, model.ffn_hidden))
    again = repeated(products)
    flops = {one.name: one.columns * one.inner for one in products}
    return sum(flops[name] for name in again) / sum(flops.values())


@pytest.mark.parametrize("name", names("models"))
def test_products_are_the_matrices_of_a_dense_layer(name: str) -> None:
    model = load_model(name)
    attention = sum(one.columns * one.inner for one in attention_products(model))
    mlp = sum(one.columns * one.inner for one in mlp_products(model, model.ffn_hidden))
    assert (attention, mlp) == (model.attention_matrix_parameters, model.dense_mlp_parameters)


def test_of_a_llama_keys_output_and_up_are_repeated() -> None:
    products = (*attention_products(LLAMA), *mlp_products(LLAMA, LLAMA.ffn_hidden))
    assert [one.name for one in products] == ["q", "k", "v", "o", "gate", "up", "down"]
    assert repeated(products) == {"k", "o", "up"}
    # (1024 + 4096 + 14336) of (2 x 4096 + 2 x 1024 + 3 x 14336) columns, all 4096 deep or wide
    assert repeated_share(LLAMA) == pytest.approx(19456 / 53248)


def test_the_share_follows_the_shapes() -> None:
    shares = {name: repeated_share(load_model(name)) for name in ("llama-3.1-8b", "llama-3.1-405b", "gpt-3-175b")}
    assert len({round(share, 4) for share in shares.values()}) == 3
    # Without a gate the last product is the sixth, and repeated: k, o and down of 4 x 1 + 2 x 4 squares.
    assert shares["gpt-3-175b"] == pytest.approx(6 / 12)
    assert repeated_share(replace(LLAMA, num_kv_heads=32)) > shares["llama-3.1-8b"]


def test_latent_attention_repeats_what_it_projects_up() -> None:
    assert [one.name for one in attention_products(DEEPSEEK)] == ["q_down", "q_up", "kv_down", "kv_up", "o"]
    assert repeated(attention_products(DEEPSEEK)) == {"q_up", "kv_up"}
    latent = replace(DEEPSEEK.latent, query_rank=0)
    assert repeated(attention_products(replace(DEEPSEEK, latent=latent))) == {"kv_down", "o"}
