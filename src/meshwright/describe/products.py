"""The matrix products of one layer in the order in which a plain trainer runs them: their sides, which of them adapters may be beside,
and which every-second checkpointing repeats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.describe.model import Model
from meshwright.describe.workload import ADAPTED, Adapters


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


def layer_products(model: Model, layer: int) -> dict[str, Product]:
    """The products of a layer by their place in it, `attention.q` or `mlp.shared.down`; without routers and routed experts."""
    experts, products = model.experts, {f"attention.{one.name}": one for one in attention_products(model)}
    if experts is None or layer < experts.num_dense_layers:
        return products | {f"mlp.{one.name}": one for one in mlp_products(model, model.ffn_hidden)}
    shared = mlp_products(model, experts.num_shared * experts.hidden) if experts.num_shared else ()
    return products | {f"mlp.shared.{one.name}": one for one in shared}


def adaptable(model: Model) -> tuple[str, ...]:
    """Names of the matrices of a model that adapters may be beside.

    In families with routed experts these are the matrices of attention. The package PEFT takes `gate_proj`, `up_proj` and `down_proj` for
    those of routed experts there (0.21, utils/transformers_weight_conversion.py), also where a layer is dense or has shared experts, so an
    adapter beside these could not be loaded by it.
    """
    held = {one.name for one in layer_products(model, 0).values()}
    kinds = ("qkv", "proj") if model.experts or model.latent else ADAPTED
    return tuple(name for kind in kinds for name in ADAPTED[kind] if name in held)


def adapted_matrices(model: Model, adapters: Adapters) -> tuple[str, ...]:
    """Names of the matrices of a model that have adapters."""
    return tuple(name for name in adaptable(model) if name in adapters.matrices)


def repeated(products: Iterable[Product]) -> frozenset[str]:
    """Names of the products that are computed again where the output of every second one is kept: the second, the fourth and so on.

    torchtitan counts the calls of aten.mm in each block anew, and keeps the odd ones (`selective_ac_option = "op"`).
    """
    return frozenset(product.name for i, product in enumerate(products) if i % 2)
