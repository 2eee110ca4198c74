"""Candidates: legal, complete, and each once."""

from dataclasses import replace
from itertools import permutations

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import AXES, Layout
from meshwright.plan.candidates import Fixed, Space, degrees, divisors, rank_orders
from meshwright.plan.features import Features
from meshwright.plan.search import search
from meshwright.predict.placement import tiers_of

MODEL = load_model("llama-3.2-1b")
CLUSTER = load_cluster("dgx-h100-superpod").resized(16)
WORKLOAD = replace(load_workload("pretrain-1t"), global_batch=8, seq_len=2048)


def all_layouts(features=None, fixed=None, model=MODEL, cluster=CLUSTER, workload=WORKLOAD):
    features, fixed = (fixed or Fixed()).narrowed(features or Features()), fixed or Fixed()
    space = Space.of(model, cluster, degrees(model, cluster, workload, features, fixed), features, fixed)
    return [batch.row(i) for batch, _ in space.batches(features.zero_stages, features.recompute) for i in range(len(batch))]


def test_divisors_are_all_and_in_order():
    assert divisors(12) == [1, 2, 3, 4, 6, 12] and divisors(1) == [1] and divisors(49) == [1, 7, 49]


def test_every_candidate_is_legal_and_stands_once():
    layouts = all_layouts(Features(max_vp=2, recompute=("none",), zero_stages=(0, 1)))
    assert len(set(layouts)) == len(layouts) > 1000
    for layout in layouts:
        Job(MODEL, CLUSTER, WORKLOAD).check(layout)


def test_all_degrees_that_divide_are_there():
    found = {(layout.tp, layout.cp, layout.pp, layout.dp, layout.micro_batch) for layout in all_layouts(Features(max_vp=1))}
    wanted = set()
    for tp, cp, pp, dp in (
        (tp, cp, pp, 16 // (tp * cp * pp)) for tp in (1, 2, 4, 8, 16) for cp in (1, 2, 4, 8, 16) for pp in (1, 2, 4, 8, 16)
    ):
        for size in (1, 2, 4, 8):
            try:
                Job(MODEL, CLUSTER, WORKLOAD).check(Layout(tp=tp, cp=cp, pp=pp, dp=dp, micro_batch=size))
            except (InputError, ZeroDivisionError):
                continue
            wanted.add((tp, cp, pp, dp, size))
    assert found == wanted


def test_rank_orders_that_put_every_axis_on_the_same_tiers_are_one():
    key = (2, 2, 2, 2)  # two nodes of 8
    kept = rank_orders([(2, 2, 2, 1, 2, 1, 1, 1)], CLUSTER, Features())[key]
    outer = {tuple(sorted(tiers_of(Layout(tp=2, cp=2, pp=2, dp=2, order=order), CLUSTER).items())) for order in permutations(AXES)}
    assert len(kept) == len(outer) == 4  # which axis crosses the fabric; the order inside a node changes nothing


def test_one_node_has_one_rank_order():
    one = load_cluster("dgx-h100-superpod").resized(8)
    assert [len(kept) for kept in rank_orders([(2, 2, 2, 1, 1, 1, 1)], one, Features()).values()] == [1]


def test_one_name_per_thing():
    for layout in all_layouts():
        if layout.pp == 1:
            assert (layout.schedule, layout.vp) == ("1f1b", 1)
        if layout.cp == 1:
            assert layout.cp_kind == "ring"
        if layout.dp * layout.cp == 1:
            assert layout.zero_stage == 0
        assert (layout.schedule == "1f1b") <= (layout.vp == 1) and (layout.schedule == "interleaved") <= (layout.vp > 1)


def test_interleaving_alone_covers_one_chunk():
    layouts = all_layouts(fixed=Fixed({"schedule": "interleaved", "pp": 2}))
    assert {layout.vp for layout in layouts} >= {1, 2} and {layout.schedule for layout in layouts} == {"interleaved"}


@pytest.mark.parametrize(
    "fixed", [{"tp": 2, "micro_batch": 2}, {"order": ("tp", "cp", "dp", "pp"), "zero_stage": 3}, {"cuda_graphs": False}]
)
def test_the_space_counts_what_it_makes(fixed):
    features = Fixed(fixed).narrowed(Features())
    rows = degrees(MODEL, CLUSTER, WORKLOAD, features, Fixed(fixed))
    space = Space.of(MODEL, CLUSTER, rows, features, Fixed(fixed))
    layouts = all_layouts(fixed=Fixed(fixed))
    assert space.num_layouts() == len(layouts) > 0
    assert all(getattr(layout, key) == value for layout in layouts for key, value in fixed.items())
    assert space.num_layouts(len(rows)) == 0


def test_all_to_all_alone_leaves_layouts_without_context_parallelism_legal():
    """Such layouts have no heads to exchange, so tensor degrees beyond the key-value heads stay open; each can be predicted."""
    job = load_model("llama-3.2-1b"), load_cluster("dgx-h100-superpod").resized(16), replace(load_workload("pretrain-1t"), global_batch=16)
    found = search(Job(*job), fixed=Fixed({"cp_kind": "all-to-all", "tp": 16}), keep=3)
    for layout in found.layouts:
        Job(*job).check(layout)
    assert {layout.cp for layout in found.layouts} == {1}
