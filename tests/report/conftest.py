"""Plans that the report's tests draw: the record machine, a workstation, a mixture of experts, a pipeline over many nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.layout import parse_layout
from meshwright.plan.make import make_plan
from meshwright.plan.plan import Plan


def planned(model: str, cluster: str, workload: str, layout: str, num_accelerators: int, **changes: Any) -> Plan:
    machine, job = load_cluster(cluster).resized(num_accelerators), replace(load_workload(workload), **changes)
    return make_plan(load_model(model), machine, job, parse_layout(layout))


@pytest.fixture(scope="session")
def record() -> Plan:
    return planned("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "tp=4,cp=2,pp=8,vp=8,dp=128", 8192)


@pytest.fixture(scope="session")
def workstation() -> Plan:
    return planned("llama-3.2-1b", "workstation-8x", "pretrain-1t", "dp=8,mbs=4", 8, global_batch=256, seq_len=4096)


@pytest.fixture(scope="session")
def experts() -> Plan:
    layout = "cp=4,dp=128,ep=64,cp_kind=all-to-all"
    return planned("deepseek-v3", "gb200-nvl72-spectrum-x", "mlperf-deepseekv3", layout, 512)


@pytest.fixture(scope="session")
def many_operations() -> Plan:
    layout = "tp=8,pp=16,vp=2,dp=8,first_stage_layers=6,last_stage_layers=8,recompute=full"
    return planned("llama-3.1-405b", "azure-nd-h100-v5", "pretrain-15t", layout, 1024, global_batch=2048)


@pytest.fixture(params=["record", "workstation", "experts", "many_operations"])
def plan(request: pytest.FixtureRequest) -> Plan:
    found: Plan = request.getfixturevalue(request.param)
    return found
