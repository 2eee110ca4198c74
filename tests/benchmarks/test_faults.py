"""The benchmark that breaks runs on purpose: what it draws, and a small batch of it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("faults_benchmark", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # its dataclasses look their annotations up there
    found.loader.exec_module(module)
    return module


def test_a_seed_draws_the_same_faults(script: ModuleType) -> None:
    assert script.drawn(3, 5) == script.drawn(3, 5) != script.drawn(4, 5)
    drawn = [script.drawn(seed, number)[1] for seed in range(10) for number in range(10)]
    assert {fault.kind for faults in drawn for fault in faults} == set(script.KINDS)
    assert {fault.phase for faults in drawn for fault in faults} == set(script.PHASES)


def test_the_table_counts_faults_by_kind(script: ModuleType) -> None:
    detail = {"kind": "kill", "phase": "step", "noticed_s": 0.1, "recovered_s": 0.4, "lost_steps": 1, "how": "went"}
    details = [detail, {**detail, "recovered_s": 0.6}]
    table = script.summary([{"number": 0, "layout": "dp=2", "problem": "", "run_s": 10.0, "useful_s": 9.0, "details": details}])
    assert "| kill | 2 | 0.10, 0.10 | 0.50, 0.60 | 1.00, 1 | 0 |" in table
    assert "1 runs, 2 faults struck, 0 runs failed; useful time 90% of the runs' time" in table


@pytest.mark.long
def test_a_small_batch_recovers(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--faults", "4", "--seed", "2", "--out", str(tmp_path / "faults.jsonl")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "1 runs, " in found.stdout and "0 runs failed" in found.stdout
