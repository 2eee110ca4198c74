"""A NaN is traced to its rank, layer and samples, in every kind of layout, and nothing is updated."""

from __future__ import annotations

import pytest
from poison import culprit_of, transient_of
from ranks import Pools

from meshwright.layout import Layout, parse_layout

LAYOUTS = ["dp=2", "tp=2", "pp=2", "cp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "pp=2,vp=2", "tp=2,pp=2", "pp=2,dp=2,zero=1"]
LAYOUTS += ["dp=2,recompute=full", "tp=2,recompute=full", "dp=2,zero=3,recompute=full", "pp=2,recompute=selective"]


def layout_of(text: str) -> Layout:
    return parse_layout(text, Layout(micro_batch=2))


@pytest.mark.parametrize("text", LAYOUTS)
def test_a_weight_that_is_no_number_on_one_rank(pools: Pools, text: str) -> None:
    layout = layout_of(text)
    rank = layout.num_ranks - 1
    found = pools.of(layout.num_ranks).run(culprit_of, layout, "weight", rank)
    assert {diagnosis for diagnosis, _ in found} == {found[0][0]}, "all ranks say the same"
    diagnosis = found[0][0]
    if layout.zero_stage == 3:  # weights are gathered for the forward: who holds the bad piece is still known
        assert diagnosis.startswith(f"first on rank {rank} (")
    assert f"rank {rank} (" in diagnosis and "weight layers." in diagnosis and "itself" in diagnosis
    assert all(unchanged for _, unchanged in found)


@pytest.mark.parametrize("text", LAYOUTS)
def test_what_a_layer_gives_for_one_sample(pools: Pools, text: str) -> None:
    layout = layout_of(text)
    rank = layout.num_ranks - 1
    found = pools.of(layout.num_ranks).run(culprit_of, layout, "forward", rank)
    diagnosis, samples = found[0][0], "samples 6, 7" if layout.dp == 2 else "samples 2, 3"
    micro_batch = 1
    layer = 0 if layout.pp == 1 else 1 if layout.vp == 2 else 2  # the first of the rank
    assert diagnosis.startswith(f"first on rank {rank} (")
    assert f"in layer {layer} (mlp_norm) in the forward of micro-batch {micro_batch} ({samples})" in diagnosis
    assert all(unchanged for _, unchanged in found)


@pytest.mark.parametrize("text", LAYOUTS)
def test_what_only_the_backward_gives(pools: Pools, text: str) -> None:
    layout = layout_of(text)
    rank = layout.num_ranks - 1
    diagnosis = pools.of(layout.num_ranks).run(culprit_of, layout, "backward", rank)[0][0]
    assert diagnosis.startswith(f"first on rank {rank} (")
    assert "(mlp_norm) in the backward of micro-batch 1 (samples" in diagnosis


def test_the_gradient_of_a_weight_alone(pools: Pools) -> None:
    diagnosis = pools.of(2).run(culprit_of, layout_of("dp=2"), "weight gradient", 1)[0][0]
    assert diagnosis == "first on rank 1 (tp 0, cp 0, pp 0, dp 1) in the gradient of layers.0.mlp.up.weight of micro-batch 1 (samples 6, 7)"


@pytest.mark.parametrize("text", ["dp=2", "dp=2,zero=1", "tp=2"])
def test_what_does_not_come_back(pools: Pools, text: str) -> None:
    diagnosis = pools.of(2).run(culprit_of, layout_of(text), "sum", 1)[0][0]
    assert diagnosis.startswith("the gradient of ") and "held by rank 1 (" in diagnosis
    assert diagnosis.endswith("so the model is sound and the machine is suspect")


@pytest.mark.parametrize(
    "text, kind, what",
    [
        ("dp=2", "forward", "loss"),
        ("dp=2", "backward", "gradient"),
        ("dp=2", "weight gradient", "gradient"),
        ("dp=2,zero=1", "weight gradient", "gradient"),
        ("dp=2,zero=2", "backward", "gradient"),
        ("dp=2,zero=3", "forward", "loss"),
        ("tp=2", "weight gradient", "gradient"),
        ("pp=2", "weight gradient", "gradient"),
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_what_happens_once_is_blamed_on_the_rank_that_saw_it(pools: Pools, text: str, kind: str, what: str, rank: int) -> None:
    layout = layout_of(text)
    (diagnosis,) = set(pools.of(2).run(transient_of, layout, kind, rank))
    assert diagnosis.startswith(f"the {what} of rank {rank} (")
    assert diagnosis.endswith("so the model is sound and the machine is suspect")


def test_what_happens_once_in_a_pipeline_is_somewhere_in_its_replica(pools: Pools) -> None:
    (diagnosis,) = set(pools.of(4).run(transient_of, layout_of("pp=2,dp=2"), "forward", 1))
    ranks = [rank for rank in range(4) if layout_of("pp=2,dp=2").coordinate(rank)["dp"] == layout_of("pp=2,dp=2").coordinate(1)["dp"]]
    assert diagnosis.startswith(f"the loss of ranks {ranks[0]}, {ranks[1]}, it is not known on which of them it began")
