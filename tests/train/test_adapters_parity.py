"""Adapters: the same loss, gradients and norms whatever the layout, the base's number format and dropout."""

from __future__ import annotations

from dataclasses import replace

import pytest
from expert_cases import MODELS as EXPERTS
from expert_cases import WHOLE
from layout_cases import factorisations
from parity import ATTENTIONS, MODELS, SHARED, WORKLOAD, Steps, differences, joined, run_steps
from ranks import Pools

from meshwright.describe.products import adaptable
from meshwright.describe.workload import Adapters, Workload
from meshwright.layout import Layout, parse_layout

NUM_STEPS = 4
ALL = ("q", "k", "v", "o", "gate", "up", "down")
LORA = replace(WORKLOAD, adapters=Adapters(rank=3, targets=ALL, alpha=5.0, dropout=0.2))

LAYOUTS = (
    "tp=2,mbs=2", "tp=4", "cp=2,mbs=2", "cp=2,tp=2,cp_kind=all-to-all", "dp=2,mbs=4", "dp=2,zero=2", "dp=2,zero=3,mbs=2",
    "dp=4,zero=1", "pp=2,mbs=2", "pp=2,vp=2,schedule=interleaved", "pp=4,recompute=full", "pp=2,tp=2,schedule=zero-bubble", 
    "dp=2,tp=2,zero=3",
)  # fmt: skip
EIGHT = ("tp=2,pp=2,dp=2,zero=1", "cp=2,tp=2,pp=2,recompute=full")


def found_and_wanted(pools: Pools, workload: Workload, text: str, model: str = "llama") -> tuple[Steps, Steps]:
    layout, shapes = parse_layout(text), {**FAMILIES, **MODELS, **SHARED}[model]
    wanted = joined(pools.of(1).run(run_steps, shapes, workload, Layout(micro_batch=workload.global_batch), NUM_STEPS))
    return joined(pools.of(layout.num_ranks).run(run_steps, shapes, workload, layout, NUM_STEPS)), wanted


@pytest.mark.parametrize("text", LAYOUTS + EIGHT)
def test_layouts_of_adapters_equal_one_process(text: str, pools: Pools) -> None:
    assert differences(*found_and_wanted(pools, LORA, text)) == []


@pytest.mark.parametrize("base", ["fp8", "nf4"])
@pytest.mark.parametrize("text", ["tp=4", "tp=2,pp=2,recompute=full", "dp=2,cp=2,zero=2"])
def test_bases_in_few_bits_equal_one_process(base: str, text: str, pools: Pools) -> None:
    workload = replace(LORA, adapters=Adapters(rank=2, targets=("q", "down"), base=base, rank_stabilised=True))
    assert differences(*found_and_wanted(pools, workload, text)) == []


@pytest.mark.parametrize(("model", "text"), [("few", "tp=4,mbs=2"), ("few", "tp=8"), ("tied", "pp=2,tp=2"), ("tied", "dp=2,zero=3")])
def test_copied_heads_and_tied_tables_equal_one_process(model: str, text: str, pools: Pools) -> None:
    assert differences(*found_and_wanted(pools, LORA, text, model)) == []


FAMILIES = {**ATTENTIONS, **EXPERTS, **WHOLE}
OF_FAMILIES = [
    ("latent", "tp=2,dp=2,mbs=1"),
    ("direct", "tp=2,cp=2,recompute=full,mbs=2"),
    ("gpt-oss with sinks and windows", "ep=2,tp=2,mbs=2,zero=1"),
    ("mixtral", "ep=2,dp=2,pp=2,mbs=2,schedule=zero-bubble"),
    ("mixtral with norms of heads", "ep=2,dp=2,mbs=2,zero=3,recompute=full"),
    ("deepseek with latent attention", "ep=2,tp=2,cp=2,mbs=4,zero=2"),
]


@pytest.mark.parametrize(("model", "text"), OF_FAMILIES)
def test_families_equal_one_process(model: str, text: str, pools: Pools) -> None:
    shapes = FAMILIES[model]
    workload = replace(LORA, adapters=replace(LORA.adapters, targets=adaptable(shapes)))
    assert differences(*found_and_wanted(pools, workload, text, model)) == []


def test_dropout_is_drawn_again_for_every_sample(pools: Pools) -> None:
    with_dropout = joined(pools.of(1).run(run_steps, MODELS["llama"], LORA, Layout(micro_batch=8), NUM_STEPS))
    without = replace(LORA, adapters=replace(LORA.adapters, dropout=0.0))
    plain = joined(pools.of(1).run(run_steps, MODELS["llama"], without, Layout(micro_batch=8), NUM_STEPS))
    assert len(set(with_dropout.losses)) == NUM_STEPS
    assert all(one != other for one, other in zip(with_dropout.losses, plain.losses, strict=True))
    assert set(with_dropout.gradients) == {f"gradient/layers.{n}.{where}.{kind}" for n in range(4) for where in WHERE for kind in KINDS}


WHERE = ("attention.q", "attention.k", "attention.v", "attention.o", "mlp.gate", "mlp.up", "mlp.down")
KINDS = ("lora_a", "lora_b")


EVERY = [degrees for size in (1, 2, 4, 8) for degrees in factorisations(size) if degrees[1] <= 4]  # the small model has four layers


@pytest.mark.long
@pytest.mark.parametrize("base", ["bf16", "nf4"])
@pytest.mark.parametrize("degrees", EVERY, ids=str)
def test_every_factorisation_of_up_to_eight_ranks_equals_one_process(degrees: tuple[int, ...], base: str, pools: Pools) -> None:
    dp, pp, cp, tp = degrees
    workload = replace(LORA, adapters=replace(LORA.adapters, base=base))
    assert differences(*found_and_wanted(pools, workload, f"dp={dp},pp={pp},cp={cp},tp={tp},mbs=1")) == []
