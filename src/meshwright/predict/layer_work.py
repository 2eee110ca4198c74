"""The kinds of layers that a model has, as the products and bytes by which a hardware profile prices them.

Matrices that multiply the same input are one product, as meshwright's trainer has them.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.cost.layers import COLUMNS, INNER, MLP_IN, MLP_OUT, SHARED, WHOLE, LayerWork, Visits, Weight
from meshwright.describe.model import Model
from meshwright.describe.products import attention_products

SPLIT = {"q_down": WHOLE, "kv_down": WHOLE, "o": INNER}  # what tensor ranks divide of a latent model's matrices; else columns


def layer_kinds(model: Model) -> tuple[tuple[float, LayerWork], ...]:
    """The kinds of layers of a model, each with its share of the layers; of leading dense layers and layers with experts there are two."""
    dense = model.num_dense_layers / model.num_layers
    kinds = [(dense, _layer(model, has_experts=False)), (1 - dense, _layer(model, has_experts=True))]
    return tuple((share, work) for share, work in kinds if share > 0)


def layers_alike(model: Model) -> Model:
    """The model without leading dense layers and prediction layers: each layer is then like the others."""
    experts = replace(model.experts, num_dense_layers=0) if model.experts else None
    return replace(model, experts=experts, num_prediction_layers=0)


def all_weights(model: Model) -> tuple[Weight, ...]:
    """The weights of all kinds of layers, those of several kinds once."""
    return tuple(dict.fromkeys(weight for _, work in layer_kinds(model) for weight in work.weights))


def _layer(model: Model, *, has_experts: bool) -> LayerWork:
    experts, latent, num_in = model.experts if has_experts else None, model.latent, model.mlp_matrices - 1
    ins = ("gate", "up")[-num_in:]
    weights = _attention(model)
    if experts is None:
        ffn, names = model.ffn_hidden, (MLP_IN, MLP_OUT)
    else:
        ffn, names = experts.num_shared * experts.hidden, SHARED
        weights += (Weight(name="router", columns=experts.num_experts, inner=model.hidden, split=WHOLE),)
    if ffn:
        weights += (
            Weight(name=names[0], columns=num_in * ffn, inner=model.hidden, holds=ins),
            Weight(name=names[1], columns=model.hidden, inner=ffn, split=INNER, holds=("down",)),
        )
    return LayerWork(
        hidden=model.hidden,
        weights=weights,
        num_heads=model.num_heads,
        head_width=model.attended_dim,
        turned=model.query_dim + 2 * model.kv_dim,
        query=model.value_dim,
        ffn=ffn,
        gated=model.gated,
        latent=latent.query_rank + latent.key_value_rank + latent.rope_dim if latent else 0,
        visits=Visits(num_experts=experts.num_experts, num_active=experts.num_active, width=experts.hidden) if experts else None,
    )


def _attention(model: Model) -> tuple[Weight, ...]:
    if model.latent is None:
        qkv = Weight(
            name="qkv",
            columns=model.query_dim + 2 * model.kv_dim,
            inner=model.hidden,
            holds=("q", "k", "v"),
            copied=2 * model.kv_dim,
            num_kv_heads=model.num_kv_heads,
        )
        return qkv, Weight(name="projection", columns=model.hidden, inner=model.value_dim, split=INNER, holds=("o",))
    return tuple(
        Weight(name=one.name.replace("_", " "), columns=one.columns, inner=one.inner, split=SPLIT.get(one.name, COLUMNS), holds=(one.name,))
        for one in attention_products(model)
    )
