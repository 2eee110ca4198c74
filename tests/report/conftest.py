"""Plans that the report's tests draw (the record machine, a workstation, experts, many nodes), and runs with known times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from meshwright.describe.load import load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import parse_layout
from meshwright.plan.plan import Plan, forecast_of, plan_bytes, plan_of
from meshwright.predict.forecast import Forecast
from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.writer import RunWriter

# What tests of pages share stands beside them, as the module `pages`.
sys.path.insert(0, str(Path(__file__).parent))


def planned(model: str, cluster: str, workload: str, layout: str, num_accelerators: int, **changes: Any) -> Plan:
    machine, job = load_cluster(cluster).resized(num_accelerators), replace(load_workload(workload), **changes)
    return plan_of(Job(load_model(model), machine, job).forecast(parse_layout(layout)))


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


@pytest.fixture
def forecast(plan: Plan) -> Forecast:
    return forecast_of(plan)


@pytest.fixture(scope="session")
def record_forecast(record: Plan) -> Forecast:
    return forecast_of(record)


@pytest.fixture(scope="session")
def workstation_forecast(workstation: Plan) -> Forecast:
    return forecast_of(workstation)


@pytest.fixture(scope="session")
def many_operations_forecast(many_operations: Plan) -> Forecast:
    return forecast_of(many_operations)


STEP_S = 0.5
SHARES = {"compute": 0.7, "exposed_tp": 0.1, "exposed_dp": 0.05, "bubble": 0.1, "optimizer": 0.05}


@dataclass(frozen=True, kw_only=True)
class RunMaker:
    """Writes run folders with steps of known times and parts."""

    runs: Path

    def __call__(
        self,
        name: str = "run",
        *,
        plan: Plan | None = None,
        times_s: Sequence[float] = (),
        kind: str = "trained",
        batch: int = 16,
        events: Sequence[tuple[str, int, float, dict[str, Any]]] = (),
        status: str = "finished",
        extra: Mapping[str, float] = MappingProxyType({}),
        num_ranks: int = 8,
        target: float | None = None,
        conditions: tuple[str, ...] = (),
    ) -> Path:
        header = RunHeader(
            name=name,
            kind=kind,
            seed=7,
            num_ranks=plan.layout.num_ranks if plan else num_ranks,
            machine="a machine",
            sequence_length=plan.workload.seq_len if plan else 128,
            target=target,
            conditions=conditions,
            created="2026-11-15T08:00:00.000+00:00",
        )
        lossy = kind == "trained"
        with RunWriter.create(self.runs, header, plan_bytes(plan) if plan else None) as writer:
            writer.steps(
                StepRecord(
                    step=number,
                    samples=number * batch,
                    loss=8.0 / number**0.2 if lossy else None,
                    grad_norm=1.0 if lossy else None,
                    step_s=step_s,
                    parts_s={part: share * step_s for part, share in SHARES.items()},
                    extra=dict(extra),
                )
                for number, step_s in enumerate(times_s or [STEP_S] * 40, start=1)
            )
            for what, step, time_s, detail in events:
                writer.event(what, step, time_s, **detail)
            if status != "running":
                writer.finish(status)
        return self.runs / name


@pytest.fixture
def make_run(tmp_path: Path) -> RunMaker:
    return RunMaker(runs=tmp_path / "runs")


def jittered(num_steps: int, step_s: float = STEP_S, spread: float = 0.01, seed: int = 0) -> list[float]:
    """Independent step times around one value."""
    return (step_s * (1 + spread * np.random.default_rng(seed).standard_normal(num_steps))).tolist()


@pytest.fixture(scope="session")
def steps_around() -> Callable[..., list[float]]:
    return jittered
