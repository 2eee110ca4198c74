from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from meshwright.describe.model import Experts, Model
from meshwright.describe.router import Balance, Router
from meshwright.train.model.transformer import Transformer
from meshwright.train.parallel.balance import Routers, Routing, is_untrained, state_names

MODEL = Model(
    name="balanced",
    num_layers=3,
    hidden=8,
    ffn_hidden=8,
    num_heads=2,
    num_kv_heads=2,
    head_dim=4,
    vocab_size=16,
    experts=Experts(num_experts=4, num_active=2, hidden=4, num_dense_layers=1, router=Router(scores="sigmoid", has_selection_bias=True)),
)
AXIS = SimpleNamespace(size=1, index=0)
MESH = SimpleNamespace(device=torch.device("cpu"), tp=AXIS, cp=AXIS, dp=AXIS)
BATCH = Balance(auxiliary=0.1, scope="batch", bias_rate=0.5)


def routers_of(balance: Balance = BATCH) -> Routers:
    return Routers(MODEL, [Transformer(MODEL)], MESH, balance)  # type: ignore[arg-type]


def totals(loads: list[float]) -> torch.Tensor:
    return torch.tensor([*loads, 0.0, 20.0, 0.0, 5.0, 0.25] * 2, dtype=torch.float64)


def test_a_bias_rises_where_an_expert_had_few_tokens_and_falls_where_it_had_many() -> None:
    routers = routers_of()
    routers.update(totals([1, 5, 3, 3]), applies=True)
    assert routers.routers[1].selection_bias.tolist() == [0.5, -0.5, 0.0, 0.0]
    assert routers.routers[2].shares.tolist() == pytest.approx([1 / 3, 5 / 3, 1.0, 1.0])


@pytest.mark.parametrize("applies", [False, torch.tensor(False)])
def test_a_step_that_was_left_out_changes_nothing(applies: bool | torch.Tensor) -> None:
    routers = routers_of()
    routers.update(totals([1, 5, 3, 3]), applies)
    assert routers.routers[1].selection_bias.tolist() == [0.0] * 4 and routers.routers[1].shares.tolist() == [1.0] * 4


def test_sums_become_means_over_tokens() -> None:
    first, second = routers_of().results(totals([1, 5, 3, 3]), num_tokens=10)
    assert first == Routing(layer=1, loads=(1, 5, 3, 3), num_dropped=0, auxiliary=2.0, z=0.0, entropy=0.5, bias_norm=0.5)
    assert second.layer == 2 and second.peak == pytest.approx(5 / 3)


def test_every_layer_has_its_place_in_what_a_rank_counts() -> None:
    routers = routers_of()
    routers.begin(1.0)
    routers.routers[2].tally.counts[0] = 7.0
    counted = routers.counted()
    assert counted is not None and len(counted) == routers.size == 2 * 9
    assert counted.nonzero().flatten().tolist() == [9]


def test_a_dense_model_counts_nothing() -> None:
    dense = replace(MODEL, experts=None)
    assert Routers(dense, [Transformer(dense)], MESH, Balance()).counted() is None  # type: ignore[arg-type]


def test_what_no_gradient_trains_is_saved() -> None:
    routers = routers_of()
    names = {piece.name for piece in (*routers.weights(), *routers.state())}
    assert names == {f"weights/layers.{layer}.mlp.router.selection_bias" for layer in (1, 2)} | state_names(MODEL, BATCH)
    assert all(is_untrained(name) for name in names)
    assert state_names(MODEL, Balance(auxiliary=0.1)) == set()
