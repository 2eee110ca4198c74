"""A plan's file and its software: what they stand for when the plan is read again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.describe.load import load_workload
from meshwright.errors import InputError
from meshwright.files import write_whole
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.plan.plan import Plan, plan_bytes, plan_of, read_plan, stack_of
from meshwright.predict.software import as_json, software


@pytest.fixture(scope="module")
def plan() -> Plan:
    workload = replace(load_workload("pretrain-1t"), global_batch=64)
    stack = replace(software(), name="short-run-16x-h100")
    return plan_of(Job("llama-3.2-1b", "dgx-h100-superpod", workload, stack, gpus=16).forecast(Layout(dp=16)))


def profile(folder: Path, name: str) -> str:
    write_whole(folder / "ours.json", json.dumps(as_json(replace(software(), name=name))))
    return str(folder / "ours.json")


def test_a_plan_of_version_0_1_is_read_under_todays_names(plan, tmp_path):
    values = json.loads(plan_bytes(plan))
    values["step_time_s"] = values.pop("step_s")
    write_whole(tmp_path / "old.json", json.dumps(values))
    plan.write(tmp_path / "new.json")
    assert read_plan(tmp_path / "old.json") == read_plan(tmp_path / "new.json")


def test_a_release_is_found_by_its_name(plan):
    assert stack_of(replace(plan, software="v5.1")) == software("v5.1")
    assert stack_of(replace(plan, software="v9.9")).release == software("v9.9").release


def test_a_profile_is_asked_for_by_its_file(plan, tmp_path):
    with pytest.raises(InputError) as caught:
        stack_of(plan)
    assert caught.value.what == "the plan was made with the software profile 'short-run-16x-h100', and a plan file holds only its name"
    assert caught.value.fix.startswith("give software, the file that `meshwright calibrate ... --out FILE` wrote")
    assert stack_of(plan, profile(tmp_path, "short-run-16x-h100")).name == "short-run-16x-h100"


@pytest.mark.parametrize("other", ["v5.1", "theirs"])
def test_other_software_than_the_plans_profile_is_refused_with_the_same_advice(plan, tmp_path, other):
    name = other if other.startswith("v") else profile(tmp_path, other)
    with pytest.raises(InputError, match="another") as caught:
        stack_of(plan, name)
    assert "give software, the file that" in caught.value.fix


@pytest.mark.parametrize("name", ["meshwright", "megatron", "fsdp", "v5.1", "nemo-26.04"])
def test_a_plan_by_a_class_of_software_is_priced_again_by_its_name(plan, name):
    assert stack_of(replace(plan, software=name)).name == name
