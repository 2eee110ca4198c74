"""Plans for jobs: racks of many nodes, replicas of two nodes, and a machine's own cores as two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.describe.load import EMULATED
from meshwright.engines.request import Request
from meshwright.engines.site import Site
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_of

BF16 = ("workload.precision=bf16",)
JOBS = {
    "racks": (("llama-3.1-8b", "gb200-nvl72-ndr", "mlperf-llama31-8b"), 128, "tp=4,dp=32,mbs=1", BF16),
    "replicas": (("llama-3.1-8b", "hgx-h200-ndr", "mlperf-llama31-8b"), 32, "tp=8,pp=2,dp=2,mbs=1", BF16),
    "cores": (("llama-2m", EMULATED, "python-stdlib"), 8, "tp=2,pp=2,dp=2,mbs=4", ()),
}


@pytest.fixture(scope="session")
def plans() -> dict[str, Plan]:
    return {
        name: plan_of(Job(*nouns, gpus=gpus, changes=changes, profile="none").forecast(layout), name)
        for name, (nouns, gpus, layout, changes) in JOBS.items()
    }


@pytest.fixture
def request_of(plans, tmp_path):
    def made(plan: str = "racks", site: Site | None = None, **more) -> Request:
        given = {"name": "first", "folder": tmp_path / "jobs" / "first", "runs": Path("/shared/runs"), **more}
        return Request(plan=plans[plan], site=site or Site(), **given)

    return made
