"""The bytes that each axis sends in a step, counted on the real process groups, are those that `meshwright.predict.traffic` says are sent.

Every operator of torch.distributed that a rank dispatches is counted, by process group: collectives, messages, and what `fully_shard`
sends by itself. Left out is one message of a step: the sum of loss, tokens and squared gradients over all ranks, in fp64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from expert_cases import COVERING, Case, case
from on_ranks import Sent, sent_in_a_step
from parity import ATTENTIONS, LLAMA, MODELS, PADDED, SHARED
from parity import WORKLOAD as PARITY
from ranks import Pools

from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.layout import Layout, parse_layout
from meshwright.predict.traffic import EXCHANGE, Step, Visit, flows, sent_bytes, sent_on

WORKLOAD = replace(PARITY, global_batch=4)

# Sizes that nothing divides evenly: buckets of gradients and rows of weights are padded to whole shards.
ODD = replace(LLAMA, name="odd-llama", hidden=35, vocab_size=88)

PREDICTING = {
    "ahead": replace(LLAMA, name="predicting-llama", num_prediction_layers=2),
    "ahead-tied": replace(PADDED["prime-tied"], name="predicting-tied", num_prediction_layers=1),
    "ahead-odd": replace(ODD, name="predicting-odd", num_prediction_layers=1),
}
SHAPES = {**MODELS, **SHARED, **PADDED, **ATTENTIONS, **PREDICTING, "odd": ODD}

CASES = [
    ("tp=2", "llama", "fp32"),
    ("tp=4,recompute=full", "gpt", "fp32"),
    ("tp=2,recompute=selective", "llama", "bf16"),
    ("tp=2,mbs=4", "gpt", "bf16"),  # nothing is added up: gradients stay in bf16
    ("cp=2,cp_kind=ring", "llama", "fp32"),
    ("cp=4,cp_kind=ring,recompute=selective", "llama", "fp32"),
    ("cp=2,tp=2,cp_kind=ring,recompute=full,mbs=2", "llama", "bf16"),
    ("cp=4,cp_kind=all-gather,mbs=2", "llama", "fp32"),
    ("cp=2,dp=2,cp_kind=all-gather,recompute=selective", "llama", "bf16"),
    ("cp=2,tp=2,cp_kind=all-to-all,recompute=selective", "llama", "fp32"),
    ("cp=2,tp=2,cp_kind=all-to-all,recompute=full", "llama", "fp32"),
    ("pp=2,schedule=1f1b", "llama", "fp32"),
    ("pp=2,vp=2,mbs=2", "tied", "fp32"),
    ("pp=2,vp=3,mbs=2", "llama", "fp32"),
    ("pp=2,mbs=4", "tied", "bf16"),
    ("pp=2,tp=2,schedule=zero-bubble,vp=2", "llama", "bf16"),
    ("pp=4,schedule=zero-bubble", "gpt", "fp32"),
    ("pp=2,dp=2,zero=3,mbs=2", "tied", "fp32"),
    ("pp=2,vp=2,dp=2,zero=3,first_stage_layers=2,last_stage_layers=2", "llama", "fp32"),
    ("dp=4,zero=0", "llama", "fp32"),
    ("dp=2,tp=2,zero=1,overlap_dp=no", "gpt", "bf16"),
    ("dp=4,zero=2", "llama", "fp32"),
    ("dp=4,zero=3", "llama", "bf16"),
    ("dp=2,zero=3,recompute=full", "tied", "fp32"),
    ("dp=2,tp=2,zero=1,mbs=2", "llama", "bf16-pure"),
    ("dp=2,zero=3,mbs=2", "llama", "bf16-pure"),
    ("dp=2,cp=2,zero=1,zero_ranks=2", "llama", "fp32"),
    ("dp=4,zero=2,zero_ranks=2", "tied", "fp32"),
    ("dp=2,cp=2,zero=3,zero_ranks=2", "llama", "bf16"),
    ("dp=2,tp=2,zero=1", "odd", "fp32"),
    ("dp=4,zero=2", "odd", "fp32"),
    ("pp=2,dp=2,zero=3", "odd", "bf16"),
    # Norms of heads, sinks, latent vectors.
    ("tp=2,mbs=2", "qwen3", "bf16"),
    ("tp=2,dp=2,zero=1", "gpt-oss", "fp32"),
    ("tp=2,recompute=full", "latent", "fp32"),
    ("tp=2,dp=2,zero=2,recompute=selective", "latent", "bf16"),
    ("tp=2,pp=2,schedule=zero-bubble", "latent", "fp32"),
    ("tp=2,cp=2,cp_kind=ring", "direct", "fp32"),
    ("tp=2,cp=2,cp_kind=all-to-all,zero=3", "latent", "fp32"),
    # Multi-token prediction: copies of the embedding, further layers, further losses.
    ("tp=2,recompute=full", "ahead", "fp32"),
    ("tp=2,pp=2", "ahead", "bf16"),
    ("pp=2,vp=2,dp=2,zero=1", "ahead", "fp32"),
    ("pp=2,dp=2,zero=3", "ahead-odd", "fp32"),
    ("pp=2,dp=2,zero=2", "ahead-odd", "fp32"),
    ("dp=2,zero=3,recompute=full", "ahead", "fp32"),
    ("dp=2,zero=3", "ahead-tied", "fp32"),
    ("tp=2,pp=2", "ahead-tied", "fp32"),
    ("cp=2,cp_kind=ring", "ahead", "fp32"),
    # Vocabularies that are padded.
    ("tp=4", "prime", "fp32"),
    ("tp=2,dp=2,zero=1", "prime-tied", "bf16"),
    ("tp=2,dp=2,zero=3", "prime", "fp32"),
    ("tp=2,pp=2", "prime-tied", "fp32"),
    # Four tensor ranks and two key-value heads, or one: copies of a head add their gradients up.
    ("tp=4", "few", "fp32"),
    ("tp=4,mbs=4,recompute=full", "one", "bf16"),
    ("tp=4,dp=2,zero=0", "few", "fp32"),
    ("tp=4,dp=2,zero=1", "few", "bf16"),
    ("tp=2,dp=2,zero=2", "one", "fp32"),
    ("tp=2,dp=2,zero=3", "one", "fp32"),
    ("tp=2,cp=2,cp_kind=ring", "one", "fp32"),
    ("tp=2,cp=2,cp_kind=all-gather,zero=3,recompute=selective", "one", "bf16"),
    ("tp=2,pp=2,vp=2,schedule=zero-bubble", "one", "fp32"),
]


def wanted(
    model: Model, workload: Workload, layout: Layout, sent: Sent, visits: tuple[Visit, ...] = ()
) -> dict[tuple[str, str, int, int], int]:
    """The flows of a rank, counted as far as its process groups can distinguish them."""
    found: Counter[tuple[str, str, int, int]] = Counter()
    for flow in flows(Step(model, workload, layout, sent.stage, visits=visits, shard=sent.shard)):
        found[sent.shared[flow.axis], flow.kind, flow.num_ranks, flow.payload_bytes] += flow.count
    return dict(found)


def check_bytes(text: str, model: str, precision: str, pools: Pools) -> None:
    """Every byte on the process groups is accounted for, rank by rank."""
    layout, shapes, workload = parse_layout(text), SHAPES[model], replace(WORKLOAD, precision=precision)
    for rank, sent in enumerate(pools.of(layout.num_ranks).run(sent_in_a_step, shapes, workload, layout)):
        assert sent.flows == wanted(shapes, workload, layout, sent), f"rank {rank}"
        assert sent.num_control == 1


@pytest.mark.parametrize("text, model, precision", CASES)
def test_every_byte_on_the_process_groups_is_accounted_for(text: str, model: str, precision: str, pools: Pools) -> None:
    check_bytes(text, model, precision, pools)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "tp=2,pp=2,dp=2,mbs=2",
        "tp=2,cp=2,dp=2,zero=3,zero_ranks=2,recompute=full",
        "pp=2,cp=2,dp=2,vp=2,zero=2,zero_ranks=2,cp_kind=all-gather",
        "pp=4,dp=2,zero=3,recompute=full,mbs=1",
        "tp=2,cp=2,pp=2,dp=2,zero=2,mbs=2",
    ],
)
def test_every_byte_of_many_axes_is_accounted_for(text: str, pools: Pools) -> None:
    check_bytes(text, "tied", "fp32", pools)


def test_bytes_by_axis_are_the_sums_of_what_was_counted(pools: Pools) -> None:
    layout = parse_layout("tp=2,pp=2,mbs=2,zero=1")
    for sent in pools.of(4).run(sent_in_a_step, LLAMA, WORKLOAD, layout):
        for axis in ("tp", "pp"):
            counted = [(kind, ranks, payload, n) for (name, kind, ranks, payload), n in sent.flows.items() if name == axis]
            num_bytes = sum(n * sent_bytes(kind, payload, ranks) for kind, ranks, payload, n in counted)
            num_messages = sum(n for *_, n in counted)
            assert (num_bytes, num_messages) == sent_on(axis, flows(Step(LLAMA, WORKLOAD, layout, sent.stage)))


EXPERTS = [
    *COVERING,
    case("ep=4,dp=4,mbs=1,zero=1"),
    case("ep=2,tp=4,mbs=4,zero=2"),
    case("ep=2,tp=2,mbs=8,zero=3", "gpt-oss"),
    case("ep=2,dp=2,tp=2,mbs=2,zero=3,recompute=full", "deepseek"),
    case("ep=2,dp=2,mbs=2,zero=2,recompute=selective", "gpt-oss"),
    case("dp=2,zero=3,recompute=full"),
]


def visits_of(sent: Sequence[Sent], rank: int) -> tuple[Visit, ...]:
    """The rows that a rank exchanged, from what the tokens of all ranks chose."""
    others = [other for other in sent[rank].experts if other != rank]
    here, there = sent[rank].experts.index(rank), [sent[rank].experts.index(other) for other in others]
    return tuple(
        Visit(sum(rows[place] for place in there), sum(sent[other].rows[number][here] for other in others))
        for number, rows in enumerate(sent[rank].rows)
    )


@pytest.mark.parametrize("text", ["ep=2,dp=2,mbs=2,zero=2", "ep=2,pp=2,tp=2,mbs=2,zero=1", "ep=2,dp=2,mbs=2,zero=3,recompute=full"])
def test_every_byte_of_experts_that_predict_is_accounted_for(text: str, pools: Pools) -> None:
    made = case(text, "deepseek")
    model, workload = replace(made.shapes, num_prediction_layers=1), replace(made.workload, training=made.training)
    found = pools.of(made.layout.num_ranks).run(sent_in_a_step, model, workload, made.layout, made.training)
    for rank, sent in enumerate(found):
        assert sent.flows == wanted(model, workload, made.layout, sent, visits_of(found, rank)), f"rank {rank}"


@pytest.mark.parametrize("number, case", list(enumerate(EXPERTS)), ids=str)
def test_every_byte_of_experts_is_accounted_for(number: int, case: Case, pools: Pools) -> None:
    precision = "fp32" if number % 3 else "bf16"
    workload = replace(case.workload, precision=precision, training=case.training)
    found = pools.of(case.layout.num_ranks).run(sent_in_a_step, case.shapes, workload, case.layout, case.training)
    for rank, sent in enumerate(found):
        visits = visits_of(found, rank)
        assert sent.flows == wanted(case.shapes, workload, case.layout, sent, visits), f"rank {rank}"
        assert sent.num_control == 1
        assert (EXCHANGE in {kind for _, kind, *_ in sent.flows}) == (case.layout.expert_ranks > 1)
