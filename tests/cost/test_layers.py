"""Layers put together from measured rates: sums worked out by hand, and what ranks divide of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cost.layers import INNER, WHOLE, Division, LayerTime, LayerWork, Visits, Weight, layer_time, mean_layer
from meshwright.cost.measured import Rates

QKV = Weight(name="qkv", columns=48 * 128, inner=4096, holds=("q", "k", "v"), copied=16 * 128, num_kv_heads=8)
PROJECTION = Weight(name="projection", columns=4096, inner=4096, split=INNER, holds=("o",))
DENSE = LayerWork(
    hidden=4096,
    weights=(
        QKV,
        PROJECTION,
        Weight(name="mlp in", columns=2 * 14336, inner=4096, holds=("gate", "up")),
        Weight(name="mlp out", columns=4096, inner=14336, split=INNER, holds=("down",)),
    ),
    num_heads=32,
    head_width=128,
    turned=48 * 128,
    query=4096,
    ffn=14336,
    gated=True,
)
ROUTER = Weight(name="router", columns=64, inner=4096, split=WHOLE)
ROUTED = replace(
    DENSE,
    weights=(
        QKV,
        PROJECTION,
        ROUTER,
        Weight(name="shared in", columns=2 * 1024, inner=4096),
        Weight(name="shared out", columns=4096, inner=1024, split=INNER),
    ),
    ffn=1024,
    visits=Visits(num_experts=64, num_active=6, width=512),
)
TOKENS = 8192


def rates_of(flops_per_s: float = 1e14, grouped_flops_per_s: float = 5e13, bytes_per_s: float = 1e12) -> Rates:
    """One rate for all products, one for grouped products, one for attention as for products, and one for bytes."""
    ways, point, attended = ("forward", "input", "weight"), np.ones((3, 1)), np.array([flops_per_s])
    return Rates(
        products={way: (point, attended) for way in ways},
        grouped={way: (np.ones((4, 1)), np.array([grouped_flops_per_s])) for way in ways},
        attention=((point, attended), (point, attended)),
        elementwise_bytes_per_s=bytes_per_s,
        loss_bytes_per_s=bytes_per_s,
        cast_bytes=0.0,
    )


def test_a_dense_layer_of_one_rate_takes_its_flops_and_bytes() -> None:
    matrices = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    layer = layer_time(DENSE, 1, TOKENS, rates_of())
    attention_flops = 2 * 32 * TOKENS**2 * 128
    assert float(sum(layer.matmul)) == pytest.approx(6 * TOKENS * matrices / 1e14)
    assert float(sum(layer.attention)) == pytest.approx(3.5 * attention_flops / 1e14)
    assert float(layer.last_s) == pytest.approx(2 * TOKENS * 4096 * 14336 / 1e14) and float(layer.into_s) == pytest.approx(
        2 * float(layer.last_s)
    )
    assert float(sum(layer.shared_s)) == 0.0
    halves = layer_time(DENSE, 1, TOKENS, rates_of(), Division(tp=2.0))
    assert float(halves.total_s) == pytest.approx(float(layer.total_s) / 2)


def test_a_layer_with_experts_is_the_sum_of_its_products_its_visits_and_its_bytes() -> None:
    layer = layer_time(ROUTED, 1, TOKENS, rates_of())
    plain = 4096 * 6144 + 4096 * 4096 + 64 * 4096 + 3 * 4096 * 1024
    visited = 6 * 3 * 4096 * 512
    products_s = 2 * TOKENS * (plain / 1e14 + visited / 5e13)
    assert float(layer.matmul[0]) == pytest.approx(products_s) and float(layer.matmul[1]) == pytest.approx(2 * products_s)
    assert float(layer.weight_s) == pytest.approx(products_s)
    assert float(layer.last_s) == float(layer.into_s) == 0.0  # the second product of the experts is computed again with the rest
    assert [float(each) for each in layer.shared_s] == pytest.approx([2 * TOKENS * 3 * 4096 * 1024 / 1e14] * 3)
    # bf16: norms, adds, heads and shared experts; a copy of the residual; a token spread to 6 visits and collected from them; the gate
    usual = 2 * (10 * 4096 + 2 * 6144 + 3 * 1024)
    visits = 2 * (2 * 7 * 4096 + 3 * 6 * 512) + 2 * 2 * 4096 + 16 * 64
    assert float(layer.memory[0]) == pytest.approx(TOKENS * (usual + visits) / 1e12)
    usual, visits = 2 * (12 * 4096 + 2 * 6144 + 5 * 1024), 2 * (2 * 7 * 4096 + 5 * 6 * 512) + 2 * 2 * 4096 + 16 * 64
    assert float(layer.memory[1]) == pytest.approx(TOKENS * (usual + visits) / 1e12)


def test_expert_ranks_divide_experts_and_their_columns_but_not_the_work() -> None:
    only = replace(ROUTED, weights=(ROUTER,))
    whole, spread, cut = (
        float(layer_time(only, 1, TOKENS, rates_of(), Division(ep=ep, etp=etp)).matmul[0]) for ep, etp in ((1, 1), (8, 1), (4, 2))
    )
    assert whole == pytest.approx(spread) == pytest.approx(cut)
    uneven = layer_time(only, 1, TOKENS, rates_of(), Division(ep=8.0, imbalance=1.5))
    routed_s = 2 * TOKENS * 6 * 3 * 4096 * 512 / 5e13
    assert float(uneven.matmul[0]) - whole == pytest.approx(routed_s / 2)


def test_a_whole_weight_multiplies_a_ranks_part_of_the_tokens() -> None:
    alone, halves = (ROUTER.seconds(np.asarray(TOKENS), tp, rates_of())[0] for tp in (1.0, 2.0))
    assert float(halves) == pytest.approx(float(alone) / 2)


def test_ranks_beyond_the_key_value_heads_hold_copies() -> None:
    assert [int(QKV.columns + QKV.more_columns(tp)) for tp in (1, 8, 16, 32)] == [48 * 128, 48 * 128, (32 + 32) * 128, (32 + 64) * 128]


def test_the_mean_of_layers_counts_each_kind_by_its_share() -> None:
    dense, routed = (layer_time(work, 1, TOKENS, rates_of()) for work in (DENSE, ROUTED))
    mixed = mean_layer([(0.25, dense), (0.75, routed)])
    assert float(mixed.total_s) == pytest.approx(0.25 * float(dense.total_s) + 0.75 * float(routed.total_s))
    assert float(mixed.last_s) == pytest.approx(0.25 * float(dense.last_s)) and len(mixed.shared_s) == 3


def test_a_frozen_layer_has_no_weight_gradients() -> None:
    layer = layer_time(ROUTED, 1, TOKENS, rates_of())
    frozen = layer.frozen(1.0, 2.0)
    assert float(frozen.matmul[1]) == pytest.approx(float(layer.matmul[0])) and float(frozen.weight_s) == 0.0
    assert float(frozen.memory[0] - layer.memory[0]) == pytest.approx(1.0) and float(frozen.memory[1] - layer.memory[1]) == pytest.approx(
        2.0
    )
    assert float(frozen.shared_s[2]) == 0.0 < float(frozen.shared_s[1])


def test_what_is_computed_again() -> None:
    layer: LayerTime = layer_time(DENSE, 1, TOKENS, rates_of())
    whole = float(layer.matmul[0] + layer.attention[0] + layer.memory[0])
    assert float(layer.again_s("none", stops_early=True)) == 0.0
    assert float(layer.again_s("selective", stops_early=True)) == float(layer.attention[0])
    assert float(layer.again_s("mlp", stops_early=True)) == float(layer.into_s)
    assert float(layer.again_s("full", stops_early=False)) == pytest.approx(whole)
    assert float(layer.again_s("full", stops_early=True)) == pytest.approx(whole - float(layer.last_s))
