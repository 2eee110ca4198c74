"""What the planner proposes the trainer runs, and what the trainer runs the planner calls legal: laws over small jobs that both know."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import GPT, LLAMA, SHARED, WORKLOAD
from small_run import TRAINING

from meshwright.cost.schedule import schedule_named
from meshwright.describe.cluster import Cluster, Tier
from meshwright.describe.load import accelerator
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.errors import InputError
from meshwright.layout import CP_KINDS, SCHEDULES, Layout, parse_layout
from meshwright.plan.candidates import Fixed, Space, degrees
from meshwright.plan.features import Features
from meshwright.plan.stack.own import check_trainable
from meshwright.predict.legality import check_layout, legal_rows
from meshwright.train.parallel.pipeline import chunk_layers, operations

MOST = 60  # layouts of a job that are looked at one by one


def flat(num_accelerators: int) -> Cluster:
    """So many accelerators on one network: any number of them is a cluster."""
    tier = Tier(
        name="node", link="ndr", num_accelerators=num_accelerators, num_installed=num_accelerators, bytes_per_s=5e10, latency_s=5e-6
    )
    return Cluster(name="flat", accelerator=accelerator("h100"), tiers=(tier,), accelerators_per_node=num_accelerators)


@st.composite
def models(draw: st.DrawFn) -> Model:
    base = draw(st.sampled_from([LLAMA, GPT]))
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 6]))
    return replace(
        base,
        num_layers=draw(st.integers(1, 9)),
        num_heads=num_kv_heads * draw(st.sampled_from([1, 2, 3, 4])),
        num_kv_heads=num_kv_heads,
        ffn_hidden=draw(st.sampled_from([48, 64, 96])),
        vocab_size=draw(st.sampled_from([96, 100, 144])),
        num_positions=base.num_positions and 96,
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    return replace(
        WORKLOAD,
        seq_len=draw(st.sampled_from([16, 24, 48, 50, 96])),
        global_batch=draw(st.sampled_from([1, 4, 6, 12, 16])),
        precision=draw(st.sampled_from(["fp32", "bf16"])),
        training=TRAINING,
    )


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    degree = st.sampled_from([1, 1, 2, 3, 4, 6])
    tp, cp, pp, dp = (draw(degree) for _ in range(4))
    few = st.sampled_from([0, 0, 0, 1, 2, 3])
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=draw(st.sampled_from([1, 1, 2, 3])) if pp > 1 else 1,
        dp=dp,
        ep=draw(st.sampled_from([1, 1, 1, tp])),
        micro_batch=draw(st.sampled_from([1, 2, 3])),
        zero_stage=draw(st.integers(0, 3)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        cp_kind=draw(st.sampled_from(CP_KINDS)),
        first_stage_layers=draw(few),
        last_stage_layers=draw(few),
    )


def proposals(model: Model, cluster: Cluster, workload: Workload, fixed: Fixed) -> list[Layout]:
    """Every layout that a search may propose, some of them where there are many."""
    features = Features()
    space = Space.of(model, cluster, degrees(model, cluster, workload, features, fixed), features, fixed)
    found: list[Layout] = []
    for batch, _ in space.batches(features.zero_stages, features.recompute):
        assert legal_rows(model, cluster, workload, batch).all()
        picked = np.unique(np.linspace(0, len(batch) - 1, MOST).astype(int)) if len(batch) else []
        found += [batch.row(int(index)) for index in picked]
    return found


@settings(max_examples=60, deadline=None)
@given(models(), workloads(), st.sampled_from([1, 2, 4, 6, 8, 12, 16]), st.sampled_from([(0, 0), (0, 0), (1, 1), (2, 0)]))
def test_the_trainer_runs_whatever_the_search_may_propose(model: Model, workload: Workload, num_ranks: int, ends: tuple[int, int]) -> None:
    fixed = Fixed({"first_stage_layers": ends[0], "last_stage_layers": ends[1]} if any(ends) else {})
    for layout in proposals(model, flat(num_ranks), workload, fixed):
        check_trainable(model, workload, layout)
        chunk_layers(model, layout)
        operations(schedule_named(layout.schedule, layout.pp, layout.vp, layout.num_micro_batches(workload.global_batch)), layout.pp - 1)


@settings(max_examples=400, deadline=None)
@given(models(), workloads(), layouts())
def test_what_the_trainer_runs_is_legal_for_the_planner(model: Model, workload: Workload, layout: Layout) -> None:
    refusals = []
    for check in (lambda: check_trainable(model, workload, layout), lambda: check_layout(model, flat(layout.num_ranks), workload, layout)):
        try:
            check()
            refusals.append(("", "", ""))
        except InputError as error:
            refusals.append((error.what, error.where, error.fix))
    assert refusals[0] == refusals[1], "the same words for the same reason"


@pytest.mark.parametrize(
    "text, model, why",
    [
        ("tp=8", LLAMA, ""),
        ("tp=4", SHARED["few"], ""),
        ("tp=8", SHARED["one"], ""),
        ("pp=2,schedule=zero-bubble,zero=3", LLAMA, ""),  # nothing is shared out: a rank has no replicas
        ("tp=3", LLAMA, "tensor degree 3 does not divide 16 attention heads"),
        ("tp=4", replace(LLAMA, num_heads=24, num_kv_heads=6), "neither divides 6 key-value heads nor is a multiple of them"),
        ("cp=16,tp=2", LLAMA, "a sequence of 32 tokens does not divide into 64 pieces"),
        ("cp=4,tp=4,cp_kind=ring", LLAMA, ""),
        ("cp=4,tp=4,cp_kind=all-to-all", LLAMA, "context x tensor degree 16 does not divide 8 key-value heads"),
        ("cp=2,tp=4,cp_kind=all-to-all", SHARED["few"], "context x tensor degree 8 does not divide 2 key-value heads"),
        ("pp=2,dp=2,schedule=zero-bubble,zero=3", LLAMA, "a zero-bubble schedule delays weight gradients"),
        ("pp=2,vp=2,schedule=1f1b", LLAMA, "1F1B runs one chunk per stage"),
        ("pp=3", LLAMA, ""),  # the embedding and the loss count as layers
        ("pp=5", LLAMA, "4 layers do not divide over 5 pipeline stages"),
        ("dp=3", LLAMA, "does not divide the global batch 8"),
        ("tp=2,ep=2", LLAMA, "small-llama has no experts"),
    ],
)
def test_the_trainer_says_what_it_refuses(text: str, model: Model, why: str) -> None:
    if not why:
        return check_trainable(model, WORKLOAD, parse_layout(text))
    with pytest.raises(InputError, match=why):
        check_trainable(model, WORKLOAD, parse_layout(text))
