"""What all tests share: no law is judged by the clock, which on a busy machine says nothing of the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("house", deadline=None)
settings.load_profile("house")

RACKS = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "--gpus", "256", "--set", "workload.global_batch=32")
RACKS_LAYOUT = "tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1,order=tp-cp-pp-dp"


@pytest.fixture(scope="session")
def racks_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a plan for 256 accelerators in racks."""
    from meshwright.cli.main import main

    path = tmp_path_factory.mktemp("plans") / "racks.json"
    assert main(["plan", *RACKS, "--layout", RACKS_LAYOUT, "--no-explain", "--keep", "1", "--out", str(path)]) == 0
    return path
