"""The benchmark of rehearsals claims nothing without a GPU, and its table says what was measured, no more."""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshwright.plan.stack.own import check_trainable

FOLDER = Path(__file__).parents[2] / "benchmarks"
CLAIM = "nothing was measured, and nothing is claimed"
GIB = 2**30


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("rehearse")


def rehearsed(case: str, **more: Any) -> dict[str, Any]:
    """What `meshwright rehearse --json` printed, as far as the table reads it."""
    times = [("compute", 2.0, 2.5, 25.0), ("end of the step", 0.01, 0.02, 100.0), ("optimizer", 0.1, 0.08, -20.0)]
    parts = [{"part": part, "predicted_part_s": said, "rehearsed_part_s": seen, "off_pct": off} for part, said, seen, off in times]
    memory = [{"part": "peak", "predicted_part_bytes": 100 * GIB, "rehearsed_part_bytes": 90 * GIB, "off_pct": -10.0}]
    values = {"stage": 4, "rehearsed_rank": 32, "layout": {"recompute": "full"}, "kernel_idle_s": 0.125}
    return {"case": case, "rehearsed_parts": parts, "rehearsed_memory": memory, **values, **more}


def test_without_a_gpu_it_says_so_and_claims_nothing(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "has_gpu", lambda: False)
    assert script.main(["--out", str(tmp_path / "results.json")]) == 0
    assert CLAIM in capsys.readouterr().out and not (tmp_path / "results.json").exists()


def test_every_case_is_a_plan_that_the_trainer_runs_and_that_should_fit(script: ModuleType) -> None:
    for case in (*script.CASES, *script.DRY_CASES):
        plan = case.plan()
        check_trainable(plan.model, plan.workload, plan.layout)
        assert max(case.stages) < plan.layout.pp and plan.peak_memory_bytes < plan.cluster.accelerator.room_bytes
        assert not case.trains or plan.layout.num_ranks == 1


def test_a_plan_may_be_priced_by_a_hardware_profile(script: ModuleType) -> None:
    case = next(one for one in script.CASES if one.name == "8B dp64")
    usual, measured = case.plan(), case.plan(Path(__file__).parents[1] / "fixtures" / "profile_of_a_card.json")
    assert usual.profile is None and measured.profile is not None
    assert measured.parts_s["compute"] != usual.parts_s["compute"]


def test_the_table_has_predicted_and_rehearsed_beside_each_other(script: ModuleType) -> None:
    *_, row, on_cores = script.table([rehearsed("a"), rehearsed("b", kernel_idle_s=None)])
    cells = "| a, stage 4 | 32 | full | 100.00 GiB | 90.00 GiB | -10.0 % | 2.000 s | 2.500 s | +25.0 % | 80.0 ms | 0.125 s |"
    assert row == cells and on_cores.endswith("| 80.0 ms |  |")


def test_a_rehearsed_step_is_compared_with_the_same_step_trained(script: ModuleType) -> None:
    (line,) = script.ratios([rehearsed("a")], [{"case": "a", "step_s": 2.5, "peak_bytes": 91 * GIB}, {"case": "b", "step_s": 1.0}])
    assert "rehearsed 2.6000 s, trained 2.5000 s, ratio 1.040; peak 90.000 against 91.000 GiB" in line


def test_a_child_that_fails_is_counted_and_its_words_are_shown(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script._child("a case", ["-c", "import sys; sys.exit('it broke')"], time.monotonic() + 60) is None
    assert "exit status 1" in (out := capsys.readouterr().out) and "it broke" in out
    assert script._child("a case", ["-c", "print('{\"a\": 1}')"], time.monotonic() + 60) == {"a": 1}
    assert script._child("late", [], 0.0) is None and "not run" in capsys.readouterr().out
