"""A plan on racks, and run folders whose seconds and dollars are worked by hand."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.ledger import Rate
from meshwright.plan.plan import Plan, plan_bytes, plan_of
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

DOLLAR_A_SECOND = Rate(usd_per_gpu_hour=Decimal(3600), provider="us", kind="given", date="2026-11-15", source="a test")


PARTS_S = {"compute": 5.0, "optimizer": 1.0, "exposed_tp": 1.0, "exposed_dp": 0.5, "bubble": 1.5, "data": 0.25, "overhead": 0.25}  # of 10 s


@cache
def racks() -> Plan:
    model, workload = load_model("llama-3.1-405b"), replace(load_workload("mlperf-llama31-405b"), global_batch=32)
    cluster = load_cluster("azure-gb200-128").resized(256)
    layout = parse_layout("tp=4,cp=2,pp=8,vp=8,dp=4,mbs=1", Job(model, cluster, workload).usual_layout())
    return plan_of(Job(model, cluster, workload).forecast(layout))


def step(number: int, step_s: float = 10.0, **extra: float) -> StepRecord:
    parts = {part: value * step_s / 10 for part, value in PARTS_S.items()}
    return StepRecord(step=number, samples=number, loss=1.0, grad_norm=1.0, step_s=step_s, parts_s=parts, extra=extra)


def new(tmp_path: Path, num_ranks: int = 4, plan: Plan | None = None, name: str = "a", kind: str = "trained") -> RunWriter:
    header = RunHeader(name=name, kind=kind, seed=0, num_ranks=num_ranks, machine="four")
    return RunWriter.create(tmp_path, header, plan_bytes(plan) if plan else None)


def start(writer: RunWriter, time_s: float = 2.0, kind: str = "start", after: int = 0, **detail: object) -> None:
    writer.event(kind, after, time_s, price=DOLLAR_A_SECOND.to_json(), **detail)


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    """Four accelerators at a dollar a second: start 2 s, two steps of 10 s, a gap of 1 s, an evaluation of 3 s, a step, a save of 4 s."""
    with new(tmp_path) as writer:
        start(writer)
        writer.step(step(1))
        writer.step(step(2))
        writer.event("evaluation", 2, 26.0, seconds=3.0, loss=1.0)
        writer.step(step(3))
        writer.event("checkpoint", 3, 40.0, saved_step=3, stall_s=4.0, write_s=1.0, commit_s=1.0)
        writer.finish("finished")
    return tmp_path / "a"
