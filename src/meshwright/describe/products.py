"""The matrix products of one layer in the order in which a plain trainer runs them, and which every-second checkpointing repeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.describe.model import Model


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product of a layer: what it makes, and its two sides."""

    name: str  # q, k, v; q_down, q_up, kv_down, kv_up of latent attention; o; gate, up, down
    columns: int
    inner: int


def attention_products(model: Model) -> tuple[Product, ...]:
    """Products around attention: each projection by itself, queries first."""
    latent, output = model.latent, Product("o", model.hidden, model.value_dim)
    if latent is None:
        return (
            Product("q", model.query_dim, model.hidden),
            Product("k", model.kv_dim, model.hidden),
            Product("v", model.kv_dim, model.hidden),
            output,
        )
    queries: tuple[Product, ...] = (Product("q", model.query_dim, model.hidden),)
    if latent.query_rank:
        queries = (Product("q_down", latent.query_rank, model.hidden), Product("q_up", model.query_dim, latent.query_rank))
    return (
        *queries,
        Product("kv_down", latent.key_value_rank + latent.rope_dim, model.hidden),
        Product("kv_up", model.num_heads * (latent.nope_dim + latent.value_dim), latent.key_value_rank),
        output,
    )


def mlp_products(model: Model, width: int) -> tuple[Product, ...]:
    """Products of an MLP of a given width: the gate first, where there is one."""
    gate = (Product("gate", width, model.hidden),) if model.gated else ()
    return (*gate, Product("up", width, model.hidden), Product("down", model.hidden, width))


def repeated(products: Iterable[Product]) -> frozenset[str]:
    """Names of the products that are computed again where the output of every second one is kept: the second, the fourth and so on.

    torchtitan counts the calls of aten.mm in each block anew, and keeps the odd ones (`selective_ac_option = "op"`).
    """
    return frozenset(product.name for i, product in enumerate(products) if i % 2)
