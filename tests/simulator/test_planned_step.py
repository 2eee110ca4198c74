"""A plan made with a hardware profile is simulated by that profile: without noise its steps are the predicted ones."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.describe.profile import load_profile
from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import Plan, plan_of
from meshwright.predict.software import on_profile, software
from meshwright.record.entries import PARTS
from meshwright.simulator.planned_step import check_plan, planned_step
from meshwright.simulator.step import simulate, undisturbed

FIXTURES = Path(__file__).parents[1] / "fixtures"
LAYOUTS = [
    ("cores", "tp=2,pp=2,dp=2"),
    ("cores", "pp=2,dp=4,zero=0"),
    ("cores", "dp=8,zero=3"),
    ("a_card", "tp=2,pp=2,dp=2,recompute=full"),
    ("a_card", "tp=4,dp=2,recompute=full"),
]


@cache
def planned(name: str, text: str) -> Plan:
    stack = on_profile(software(), load_profile(FIXTURES / f"profile_of_{name}.json"))
    if name == "cores":
        return plan_of(
            Job(load_model("llama-2m"), load_cluster("this-machine-2x4"), load_workload("python-stdlib"), stack).forecast(
                parse_layout(text)
            )
        )
    workload = replace(load_workload("pretrain-1t"), precision="bf16-pure", global_batch=64)
    return plan_of(Job(load_model("llama-3.1-8b"), load_cluster("hgx-h200-ndr").resized(8), workload, stack).forecast(parse_layout(text)))


@pytest.mark.parametrize(("name", "text"), LAYOUTS)
def test_without_noise_a_step_is_the_predicted_one(name: str, text: str) -> None:
    plan = planned(name, text)
    check_plan(plan)
    job = planned_step(plan)
    steps = simulate(job, 3, seed=7)
    assert steps.step_s == pytest.approx([plan.step_s] * 3, rel=1e-12)
    for part in PARTS:
        assert steps.parts_s[part] == pytest.approx([plan.parts_s[part]] * 3, rel=1e-9, abs=1e-12)
    # The walked pipeline is the predicted one: no part of it is left to the difference between the two.
    inside = ("compute", "exposed_tp", "exposed_cp", "exposed_ep", "exposed_pp", "bubble", "overhead")
    predicted_s = sum(plan.parts_s[part] for part in inside) - float(job.forecast.detail.end_s[0])
    assert undisturbed(job).pipeline_s == pytest.approx(predicted_s, rel=1e-4)


def test_on_shared_cores_hidden_traffic_takes_its_time_from_compute() -> None:
    assert planned_step(planned("cores", "tp=2,pp=2,dp=2")).traffic.contention == 1.0
    assert planned_step(planned("a_card", "tp=2,pp=2,dp=2,recompute=full")).traffic.contention < 1.0


def test_a_plan_that_lost_its_profile_is_refused() -> None:
    with pytest.raises(InputError, match="the plan says"):
        check_plan(replace(planned("cores", "dp=8"), profile=None))
