"""What a software stack can do: each choice that is closed is out of the search, and each open one is in."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.layout import Layout
from meshwright.plan.candidates import Fixed, Space, degrees
from meshwright.plan.features import FLAGS, Features

MODEL = load_model("llama-3.2-1b")
CLUSTER = load_cluster("dgx-h100-superpod").resized(8)
WORKLOAD = replace(load_workload("pretrain-1t"), global_batch=2, seq_len=2048)


def layouts(features: Features) -> list[Layout]:
    """All layouts of a small job on one node that a search may look at."""
    space = Space.of(MODEL, CLUSTER, degrees(MODEL, CLUSTER, WORKLOAD, features, Fixed()), features, Fixed())
    return [batch.row(i) for batch, _ in space.batches(features.zero_stages, features.recompute) for i in range(len(batch))]


@cache
def every_layout() -> list[Layout]:
    return layouts(Features())


def degrees_of(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.cp, layout.pp, layout.vp, layout.dp, layout.micro_batch


@pytest.mark.parametrize(
    "closed, is_kept",
    [
        ({"max_tp": 2}, lambda layout: layout.tp <= 2),
        ({"max_cp": 1}, lambda layout: layout.cp == 1),
        ({"max_pp": 2}, lambda layout: layout.pp <= 2),
        ({"max_vp": 1}, lambda layout: layout.vp == 1),
        ({"max_micro_batch": 1}, lambda layout: layout.micro_batch == 1),
        ({"zero_stages": (3,)}, lambda layout: layout.zero_stage == 3),
        ({"recompute": ("full",)}, lambda layout: layout.recompute == "full"),
        ({"schedules": ("interleaved",)}, lambda layout: layout.pp == 1 or layout.schedule == "interleaved"),
        ({"cp_kinds": ("ring",)}, lambda layout: layout.cp == 1 or layout.cp_kind == "ring"),
        ({"orders": (("tp", "cp", "dp", "pp"),)}, lambda layout: layout.order == ("tp", "cp", "dp", "pp")),
        ({"uneven_split": False}, lambda layout: MODEL.num_layers % (layout.pp * layout.vp) == 0),
    ],
)
def test_a_closed_choice_is_in_no_layout(closed, is_kept):
    found = layouts(Features(**closed))
    assert found and all(is_kept(layout) for layout in found)
    open_too = {degrees_of(layout) for layout in every_layout() if is_kept(layout)}
    assert open_too <= {degrees_of(layout) for layout in found}  # no more is left out


@pytest.mark.parametrize("value", [True, False])
def test_switches_are_taken_as_they_are(value):
    found = layouts(replace(Features(max_cp=1, max_vp=1), **dict.fromkeys(FLAGS, value)))
    assert found and {getattr(layout, flag) for layout in found for flag in FLAGS} == {value}


def test_features_are_values_that_can_be_kept_in_sets():
    assert len({Features(), Features(), Features(max_tp=8)}) == 2
