"""The published JSON Schema of plan files."""

import json
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import plan_of
from meshwright.plan.schema import schema_text

PUBLISHED = Path(__file__).parents[2] / "docs" / "plan.schema.json"


def test_the_published_schema_is_current():
    again = "python -m meshwright.plan.schema > docs/plan.schema.json"
    assert PUBLISHED.read_text() == schema_text(), f"write it again: {again}"


def test_the_schema_has_a_title_of_its_own():
    assert json.loads(schema_text())["title"] == "meshwright plan"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
    plan_of(
        Job(load_model("llama-3.1-405b"), load_cluster("azure-gb200-128"), load_workload("mlperf-llama31-405b")).forecast(layout)
    ).write(path)
    return json.loads(path.read_text())


def resolved(schema, root):
    return root["$defs"][schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema


@pytest.mark.parametrize("part", ["", "model", "cluster", "workload", "layout"])
def test_a_plan_file_has_the_schemas_keys(written, part):
    schema = json.loads(PUBLISHED.read_text())
    described, value = resolved(schema, schema), written
    if part:
        described, value = resolved(described["properties"][part], schema), written[part]
    of_measured = {"profile"} if not part else set()  # of a plan that stands on a profile alone
    assert value.keys() == described["properties"].keys() - of_measured
    assert set(described.get("required", ())) <= value.keys()
