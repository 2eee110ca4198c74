"""A layout: what it refuses, how it is written, and where its ranks stand."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.errors import InputError, MeshwrightError
from meshwright.job import Job
from meshwright.layout import AXES, CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, Layout, Layouts, parse_layout, read_choices

RECORD = "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"
small = st.integers(1, 6)


@st.composite
def layouts(draw):
    tp, cp, pp, dp = (draw(small) for _ in range(4))
    return Layout(
        tp=tp,
        cp=cp,
        pp=pp,
        vp=draw(small) if pp > 1 else 1,
        dp=dp,
        ep=(ep := draw(st.sampled_from([n for n in range(1, 7) if dp * cp * tp % n == 0]))),
        etp=draw(st.sampled_from([n for n in range(1, 7) if dp * cp * tp % (ep * n) == 0])),
        micro_batch=draw(small),
        zero_stage=draw(st.integers(0, 3)),
        zero_ranks=draw(st.sampled_from([n for n in range(7) if n == 0 or dp * cp % n == 0])),
        recompute=draw(st.sampled_from(RECOMPUTE)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        cp_kind=draw(st.sampled_from(CP_KINDS)),
        order=draw(st.sampled_from(ORDERS)),
        overlap_tp=draw(st.booleans()),
        overlap_pp=draw(st.booleans()),
        overlap_dp=draw(st.booleans()),
        cuda_graphs=draw(st.booleans()),
        first_stage_layers=draw(st.integers(0, 9)),
        last_stage_layers=draw(st.integers(0, 9)),
    )


def test_the_record_layout_as_text():
    layout = parse_layout(RECORD)
    assert (layout.tp, layout.cp, layout.pp, layout.vp, layout.dp, layout.micro_batch) == (4, 2, 8, 8, 128, 1)
    assert (layout.num_ranks, layout.num_micro_batches(1024)) == (8192, 8)
    assert layout.degrees == RECORD
    assert str(layout) == (
        "tp=4,cp=2,pp=8,vp=8,dp=128,ep=1,mbs=1,zero=1,recompute=none,schedule=interleaved,cp_kind=ring,order=tp-cp-pp-dp,"
        "overlap_tp=no,cuda_graphs=yes"
    )


JOBS = [
    (load_model(model), load_cluster(cluster), replace(load_workload("pretrain-1t"), precision=precision))
    for model in ("llama-3.1-8b", "deepseek-v3")
    for cluster, precision in (
        ("dgx-h100-superpod", "bf16"),
        ("dgx-h100-superpod", "fp8"),
        *(("azure-gb200-128", p) for p in ("bf16", "nvfp4")),
    )
]


@given(layouts(), st.sampled_from([Layout(), *(Job(*job).usual_layout() for job in JOBS)]))
def test_a_layouts_text_gives_the_same_layout_back_whatever_it_is_read_for(layout, usual):
    assert parse_layout(str(layout), usual) == layout


@given(layouts())
def test_a_layouts_text_leaves_a_search_nothing_to_choose(layout):
    choices = read_choices(str(layout))
    searched = {"tp", "cp", "pp", "vp", "dp", "ep", "micro_batch", "zero_stage", "recompute", "order", "overlap_tp", "cuda_graphs"}
    searched |= {"schedule"} if layout.pp > 1 else set()
    assert searched | ({"cp_kind"} if layout.cp > 1 else set()) <= set(choices)


def test_every_key_can_be_written():
    text = "zero=3, recompute=full,schedule=zero-bubble,cp_kind=all-gather,order=tp-cp-dp-pp,overlap_tp=on,overlap-dp=no,cuda_graphs=0,pp=2"
    layout = parse_layout(text)
    assert (layout.zero_stage, layout.recompute, layout.schedule, layout.cp_kind) == (3, "full", "zero-bubble", "all-gather")
    assert (layout.order, layout.overlap_tp, layout.overlap_dp, layout.cuda_graphs) == (("tp", "cp", "dp", "pp"), True, False, False)
    assert layout.degrees == "tp=1,cp=1,pp=2,vp=1,dp=1,mbs=1,zero=3,recompute=full"
    assert "cp_kind=all-gather" in str(layout) and "overlap_dp=no" in str(layout) and parse_layout(str(layout)) == layout


def test_text_changes_only_what_it_names():
    base = parse_layout(RECORD)
    assert parse_layout("dp=64", base) == parse_layout(RECORD.replace("dp=128", "dp=64"))
    assert parse_layout("", base) == base


@pytest.mark.parametrize(
    "text, what, where",
    [
        ("tp", "tp has no value in the layout", "layout='tp'"),
        ("tp=4,zero", "zero has no value in the layout", "layout='tp=4,zero'"),
        ("tpp", "cannot read 'tpp' in the layout", "layout"),
        ("tpp=4", "cannot read 'tpp=4' in the layout", "layout"),
        ("tp=four", "tp is 'four', not a whole number", "layout.tp"),
        ("tp=", "tp is '', not a whole number", "layout.tp"),
        ("tp=1.5", "tp is '1.5', not a whole number", "layout.tp"),
        ("tp=4,tp=8", "tp is given twice", "layout='tp=4,tp=8'"),
        ("mbs=1,micro_batch=2", "micro_batch is given twice", "layout='mbs=1,micro_batch=2'"),
        ("tp=0", "tp is 0", "layout.tp"),
        ("mbs=-1", "mbs is -1", "layout.micro_batch"),
        ("pp=2,first_stage_layers=-4", "first_stage_layers is -4", "layout.first_stage_layers"),
        ("pp=2,vp=99999999999999999999", "vp is 99999999999999999999", "layout.vp"),
        ("zero=4", "ZeRO stage 4 does not exist", "layout.zero"),
        ("recompute=some", "no recompute named 'some'", "layout.recompute"),
        ("schedule=gpipe", "no schedule named 'gpipe'", "layout.schedule"),
        ("cp_kind=tree", "no cp_kind named 'tree'", "layout.cp_kind"),
        ("order=tp-cp-pp", "rank order tp-cp-pp must name each of tp, cp, pp, dp once", "layout.order"),
        ("overlap_tp=maybe", "overlap_tp is 'maybe', not yes or no", "layout.overlap_tp"),
        ("vp=2", "vp=2 model chunks need a pipeline, and pp is 1", "layout.vp"),
        ("dp=8,ep=3", "expert degree 3 does not divide dp x cp x tp = 8", "layout.ep"),
        ("dp=8,ep=4,etp=4", "ep=4 x etp=4 = 16 does not divide dp x cp x tp = 8", "layout.etp"),
    ],
)
def test_what_is_refused(text, what, where):
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert (caught.value.what, caught.value.where) == (what, where)


@pytest.mark.parametrize("text, fix", [("tp", "write tp=2, for example"), ("order", "write order=tp-cp-pp-dp, for example")])
def test_a_key_without_a_value_is_shown_with_one(text, fix):
    with pytest.raises(InputError) as caught:
        parse_layout(text)
    assert caught.value.fix == fix and parse_layout(fix.removeprefix("write ").removesuffix(", for example"))


def test_a_misspelt_key_gets_the_nearest():
    with pytest.raises(InputError) as caught:
        parse_layout("recomput=full")
    assert caught.value.fix == "write KEY=VALUE; did you mean recompute?"


keys = st.sampled_from([f.name for f in fields(Layout)] + ["mbs", "zero", "tpp", ""])
values = st.one_of(
    st.integers().map(str), st.sampled_from(["", "yes", "full", "1f1b", "tp-cp-pp-dp", "9" * 400, "-0"]), st.text(max_size=5)
)


@given(st.one_of(st.text(), st.lists(st.tuples(keys, values)).map(lambda items: ",".join(f"{k}={v}" for k, v in items))))
def test_no_text_raises_anything_but_our_own_error(text):
    try:
        layout = parse_layout(text)
    except MeshwrightError:
        return
    assert Layouts.of([layout]).row(0) == layout


def test_a_batch_that_does_not_divide_says_what_would():
    with pytest.raises(InputError) as caught:
        Layout(dp=7, micro_batch=2).num_micro_batches(1024)
    assert caught.value.what == "dp=7 x mbs=2 = 14 does not divide the global batch 1024"
    assert caught.value.fix == "choose dp x mbs from the divisors of 1024: 2, 4, 8, 16, 32, 64"


@pytest.mark.parametrize("batch, micro_batch", [(10**12 + 39, 2), (10**18, 7), (1, 10**9)])
def test_the_advice_comes_at_once_however_large_the_numbers(batch, micro_batch):
    with pytest.raises(InputError, match="does not divide the global batch"):
        Layout(micro_batch=micro_batch).num_micro_batches(batch)


def test_ranks_of_the_record_layout():
    layout = parse_layout(RECORD)
    assert [layout.stride(axis) for axis in ("tp", "cp", "pp", "dp")] == [1, 4, 8, 64]
    assert layout.coordinate(4 + 3 + 8 * 5 + 64 * 100) == {"tp": 3, "cp": 1, "pp": 5, "dp": 100}


@given(layouts())
def test_ranks_and_coordinates_are_one_to_one(layout):
    coordinates = [layout.coordinate(rank) for rank in range(layout.num_ranks)]
    assert [layout.rank(coordinate) for coordinate in coordinates] == list(range(layout.num_ranks))
    assert len({tuple(coordinate.items()) for coordinate in coordinates}) == layout.num_ranks
    assert all(0 <= coordinate[axis] < getattr(layout, axis) for coordinate in coordinates for axis in AXES)


@given(st.lists(layouts(), min_size=1, max_size=8))
def test_columns_give_their_layouts_back(rows):
    columns = Layouts.of(rows)
    assert len(columns) == len(rows)
    assert [columns.row(i) for i in range(len(rows))] == rows


@given(st.lists(layouts(), min_size=1, max_size=8))
def test_strides_of_columns_are_those_of_their_rows(rows):
    columns = Layouts.of(rows)
    for axis in AXES:
        np.testing.assert_array_equal(columns.stride(axis), [row.stride(axis) for row in rows])


def test_a_mask_or_an_index_picks_rows():
    columns = Layouts.of([Layout(tp=tp) for tp in (1, 2, 4, 8)])
    assert columns.take(columns.tp > 2).tp.tolist() == [4, 8]
    assert columns.take([3, 0]).tp.tolist() == [8, 1]
    assert len(Layouts.of([])) == 0
