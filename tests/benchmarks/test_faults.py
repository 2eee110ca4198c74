"""The benchmark that breaks runs on purpose: what it draws, what it prints, and a small batch of it."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from fault_plan import KINDS, LATER_PHASES, LOSES_A_REPLICA, PHASES, drawn
from fault_table import tables

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "faults.py"


def test_a_seed_draws_the_same_faults() -> None:
    assert drawn(3, 5) == drawn(3, 5) != drawn(4, 5)
    found = [drawn(seed, number)[1] for seed in range(10) for number in range(10)]
    assert {fault.kind for faults in found for fault in faults} == set(KINDS)
    assert {fault.phase for faults in found for fault in faults} == set(PHASES)


def test_a_fault_during_a_recovery_follows_one_that_loses_a_replica() -> None:
    for number in range(20):
        faults = drawn(1, number)[1]
        for before, fault in pairwise(faults):
            assert fault.phase not in LATER_PHASES or before.kind in LOSES_A_REPLICA


def test_the_tables_count_faults_by_kind_phase_and_layout() -> None:
    fault = {"kind": "kill", "phase": "step", "noticed_s": 0.1, "recovered_s": 0.4, "lost_steps": 1, "how": "went"}
    faults = [fault, {**fault, "recovered_s": 0.6, "how": "restarted"}, {"kind": "lost disk", "phase": "save"}]
    outcome = {"seed": 1, "number": 0, "layout": "dp=2", "problem": "", "ettr": {"run_s": 10.0, "work_s": 9.0}, "faults": faults}
    text = tables([outcome])
    assert "| kill | 2 | 0.10, 0.10 | 0.50, 0.60 | 1.00, 1 | 1 |" in text
    assert "| step | 2 |" in text and "| lost disk | 1 | - | - | - | 0 |" in text and "| dp=2 | 3 |" in text
    assert "1 runs, 3 faults struck, 0 runs failed; a fault every 3.3 s, and 90.0% of the runs' time was work that counts" in text
    assert "- seed 1, run 0 (dp=2): it hangs" in tables([{**outcome, "problem": "it hangs"}])


def test_a_small_batch_recovers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = ["--faults", "5", "--per-run", "6", "--seed", "20", "--out", str(tmp_path / "faults.jsonl")]
    found = subprocess.run([sys.executable, str(SCRIPT), *given], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 runs failed" in found.stdout
