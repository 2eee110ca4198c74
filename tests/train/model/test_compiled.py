"""Layers are compiled on a GPU, unless gradients are put off: whole, around attention, or between collectives."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from expert_cases import DEEPSEEK, MIXTRAL
from on_ranks import compiled_steps
from parity import LLAMA, TRAINING, WORKLOAD, differences, joined, run_steps
from ranks import Pools

from meshwright.describe.model import Model
from meshwright.describe.router import Balance
from meshwright.describe.workload import Adapters
from meshwright.layout import Layout, parse_layout
from meshwright.train.model.compiled import AroundAttention, AroundExperts, BeforeExperts, BetweenCollectives, compile_layers, compiles
from meshwright.train.model.transformer import Transformer


@pytest.mark.parametrize(
    "layout, expected",
    [
        ("dp=1", True),
        ("dp=4,zero=3", True),
        ("pp=2,vp=2", True),
        ("tp=2", True),
        ("cp=2", True),
        ("pp=2,schedule=zero-bubble", False),
        ("dp=2,schedule=zero-bubble", True),  # without a pipeline nothing is put off
    ],
)
def test_which_layouts_are_compiled(layout: str, expected: bool) -> None:
    assert compiles(parse_layout(layout), torch.device("cuda")) is expected
    assert compiles(parse_layout(layout), torch.device("cpu")) is False


def test_the_compilers_advice_on_tf32_does_not_reach_the_user() -> None:
    compile_layers(SimpleNamespace(blocks=lambda: (), predictions=lambda: ()), parse_layout("dp=1"), packed=False)  # type: ignore[arg-type]
    with warnings.catch_warnings(record=True) as seen:
        warnings.warn("TensorFloat32 tensor cores for float32 matrix multiplication available but not enabled.", UserWarning, stacklevel=1)
    assert seen == []


@pytest.mark.parametrize(
    "layout, packed, expected",
    [
        ("dp=2", False, "function"),
        ("dp=2", True, AroundAttention.__name__),
        ("cp=2", False, AroundAttention.__name__),
        ("tp=2", False, BetweenCollectives.__name__),
        ("tp=2,cp=2", True, BetweenCollectives.__name__),
    ],
)
def test_where_a_layer_is_cut_for_the_compiler(layout: str, packed: bool, expected: str) -> None:
    with torch.device("meta"):
        chunk = Transformer(LLAMA)
    compile_layers(chunk, parse_layout(layout), packed=packed)
    assert {type(block.compiled).__name__ for block in chunk.blocks()} == {expected}


@pytest.mark.parametrize(
    "layout, num_graphs",
    [
        ("mbs=4", 2),  # documents are packed: before and after attention
        ("tp=2,mbs=4", 3),  # the rotation, and the second product of either half
        ("cp=2,cp_kind=ring,mbs=4,recompute=full", 2),
    ],
)
def test_compiled_pieces_equal_layers_as_they_are_written(layout: str, num_graphs: int, pools: Pools) -> None:
    wanted = joined(pools.of(1).run(run_steps, LLAMA, WORKLOAD, Layout(micro_batch=8), 2))
    parsed = parse_layout(layout)
    answers = pools.of(parsed.num_ranks).run(compiled_steps, LLAMA, WORKLOAD, parsed, 2)
    assert differences(joined([found for found, _ in answers]), wanted) == []
    assert {graphs for _, graphs in answers} == {num_graphs}  # once for all layers and steps


@pytest.mark.parametrize(
    "layout, model, num_graphs",
    [
        ("mbs=4", MIXTRAL, 3),  # documents are packed: before and after attention; the norm with the router
        ("ep=2,dp=2,mbs=2,recompute=full", DEEPSEEK, 5),  # and shared experts; and the first layer, which is dense, after attention
    ],
    ids=["mixtral", "deepseek"],
)
def test_compiled_layers_with_experts_equal_layers_as_they_are_written(layout: str, model: Model, num_graphs: int, pools: Pools) -> None:
    workload = replace(WORKLOAD, training=replace(TRAINING, balance=Balance(auxiliary=0.01, z=0.001)))
    wanted = joined(pools.of(1).run(run_steps, model, workload, Layout(micro_batch=8), 2))
    parsed = parse_layout(layout)
    answers = pools.of(parsed.num_ranks).run(compiled_steps, model, workload, parsed, 2)
    assert differences(joined([found for found, _ in answers]), wanted) == []
    assert {graphs for _, graphs in answers} == {num_graphs}  # once for all layers and steps, however many tokens an expert has


@pytest.mark.parametrize(
    "layout, expected", [("dp=2", AroundExperts), ("dp=2,ep=2", AroundExperts), ("cp=2", AroundExperts), ("tp=2", BeforeExperts)]
)
def test_where_a_layer_with_experts_is_cut_for_the_compiler(layout: str, expected: type) -> None:
    with torch.device("meta"):
        chunk = Transformer(MIXTRAL)
    compile_layers(chunk, parse_layout(layout), packed=False)
    assert {type(block.compiled) for block in chunk.blocks()} == {expected}


ADAPTERS = Adapters(rank=3, targets=("q", "k", "v", "o", "gate", "up", "down"), alpha=5.0)


@pytest.mark.parametrize(
    "layout, dropout, base, num_graphs",
    [
        ("mbs=4", 0.0, "bf16", 2),
        ("mbs=4", 0.2, "nf4", 2),
        ("mbs=4,recompute=full", 0.2, "fp8", 3),  # before attention, after it, and the second half up to its last product
        ("mbs=4,recompute=mlp", 0.0, "nf4", 3),
        ("tp=2,mbs=4,recompute=mlp", 0.2, "bf16", 2),
    ],
)
def test_compiled_layers_with_adapters_equal_layers_as_they_are_written(
    layout: str, dropout: float, base: str, num_graphs: int, pools: Pools
) -> None:
    workload = replace(WORKLOAD, adapters=replace(ADAPTERS, dropout=dropout, base=base))
    wanted = joined(pools.of(1).run(run_steps, LLAMA, workload, Layout(micro_batch=8), 2))
    parsed = parse_layout(layout)
    answers = pools.of(parsed.num_ranks).run(compiled_steps, LLAMA, workload, parsed, 2)
    assert differences(joined([found for found, _ in answers]), wanted) == []
    assert {graphs for _, graphs in answers} == {num_graphs}  # once for all layers and steps
