"""The exact schedule: chunks hold the layers that the trainer deals out to them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.job import Job
from meshwright.plan.candidates import fixed_by
from meshwright.plan.search import search

JOB = Job("llama-3.1-70b", "dgx-h100-superpod", "pretrain-1t", gpus=64)


def test_the_even_split_stated_costs_what_it_costs_unstated() -> None:
    layout = JOB.layout("tp=8,pp=2,vp=4,mbs=1,recompute=full")
    stated = replace(layout, first_stage_layers=40, last_stage_layers=40)
    assert JOB.forecast(stated, ignore_memory=True).step_s == pytest.approx(JOB.forecast(layout, ignore_memory=True).step_s, rel=1e-9)


@pytest.mark.parametrize("vp", [1, 2, 4])
def test_a_fuller_last_stage_is_slower_in_proportion(vp: int) -> None:
    even = JOB.forecast(f"tp=8,pp=2,vp={vp},mbs=1,recompute=full", ignore_memory=True)
    uneven = JOB.forecast(f"tp=8,pp=2,vp={vp},mbs=1,recompute=full,first_stage_layers=36,last_stage_layers=44", ignore_memory=True)
    assert uneven.step_s / even.step_s == pytest.approx(44 / 40, rel=0.02)


@pytest.mark.parametrize("ends", ["first_stage_layers=1,last_stage_layers=3", "first_stage_layers=1"])
def test_an_uneven_zero_bubble_split_is_planned_as_it_is_trained(ends: str) -> None:
    job = Job("llama-2m", "this-machine-2x4", "python-stdlib", profile="none", gpus=4)
    found = search(job, fixed=fixed_by(f"pp=2,dp=2,schedule=zero-bubble,{ends}"), keep=1, reserve_bytes=0.0)
    assert found.layouts[0].first_stage_layers == 1 and found.step_s[0] > 0


def test_states_shared_in_groups_are_planned_as_they_are_trained() -> None:
    job = Job("llama-2m", "this-machine-2x4", "python-stdlib", profile="none", gpus=6).changed("workload.global_batch=12")
    found = search(job, fixed=fixed_by("dp=6,zero_ranks=3"), keep=1, reserve_bytes=0.0)
    assert found.layouts[0].zero_ranks == 3
