"""Runs and a profile that the tests of pages draw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.plan.plan import Plan
from meshwright.record.profile import profile_of
from meshwright.report.page.trace_page import trace_page

EVIL = "<script>alert(1)<_script>"
EVENTS = (
    ("start", 0, 2.0, {}),
    ("evaluation", 50, 30.0, {"loss": 5.25, "seconds": 1.0, "samples": 800}),
    ("slow_rank", 60, 36.0, {"rank": 3, "message": "rank 3 is 1.4 times as slow as its stage"}),
    ("checkpoint", 70, 42.0, {"saved_step": 70, "stall_s": 0.25}),
    ("fault", 80, 48.0, {"cause": "<b>network</b>"}),
    ("restart", 80, 60.0, {}),
)


@pytest.fixture
def trained(make_run, workstation: Plan, steps_around) -> Path:
    times = steps_around(100)
    return make_run("trained", plan=workstation, times_s=times, events=EVENTS, target=5.0, extra={"memory_bytes": 2e10}, batch=16)


@pytest.fixture
def simulated(make_run, workstation: Plan, steps_around) -> Path:
    return make_run(
        "simulated", plan=workstation, kind="simulated", times_s=steps_around(100, 0.6), batch=16, extra={"slowest_replica": 5.0}
    )


@pytest.fixture
def profile_page(tmp_path: Path) -> str:
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": length, "args": {"stream": stream}}
        for name, stream, start, length in (("gemm", 7, 0, 10), (f"nccl{EVIL}Kernel", 20, 8, 12), ("gemm", 7, 20, 10))
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": events}))
    return trace_page(profile_of((tmp_path / "trace.json",)))
