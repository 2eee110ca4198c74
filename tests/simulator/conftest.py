"""Small plans to simulate, made once each."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import meshwright.job
from meshwright.describe.load import load_workload
from meshwright.plan.plan import Plan, plan_of
from meshwright.simulator.noise import QUIET, Noise
from meshwright.simulator.planned_step import PlannedStep, planned_step

RECORD = "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1"


@cache
def made(layout: str, cluster: str, model: str, workload: str, gpus: int, batch: int) -> Plan:
    wanted = load_workload(workload)
    wanted = replace(wanted, global_batch=batch) if batch else wanted
    return plan_of(meshwright.job.Job(model, cluster, wanted, gpus=gpus or None).forecast(layout))


@pytest.fixture
def small():
    """A plan of the 8B model on a few H100 nodes."""

    def plan(layout: str, gpus: int, batch: int = 64, cluster: str = "dgx-h100-superpod") -> Plan:
        return made(layout, cluster, "llama-3.1-8b", "mlperf-llama31-8b", gpus, batch)

    return plan


@pytest.fixture
def record() -> Plan:
    return made(RECORD, "azure-gb200-128", "llama-3.1-405b", "mlperf-llama31-405b", 0, 0)


@pytest.fixture
def racks() -> Plan:
    """Four racks of the record machine: 256 accelerators, with planes to lose."""
    return made("tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1", "azure-gb200-128", "llama-3.1-405b", "mlperf-llama31-405b", 256, 32)


@pytest.fixture
def racks_job(racks: Plan) -> PlannedStep:
    return planned_step(racks)


@pytest.fixture
def loud() -> Noise:
    return replace(
        QUIET,
        jitter=0.01, delay=0.001, drift=0.01, level_spread=0.4, stalls_per_hour=0.05, stall_spread=1.0, stall_share=0.5, first_step_s=0.4,
        after_evaluation_s=0.1, run_spread=0.003,
    )  # fmt: skip
