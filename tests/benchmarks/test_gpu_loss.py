"""The benchmark that kills ranks on a GPU: without one it claims nothing, and its code runs over gloo."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPT = FOLDER / "gpu_loss.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER.parent / "tests" / "train"))
    return importlib.import_module("gpu_loss")


def test_without_a_gpu_it_says_so_and_claims_nothing(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(script, "gpu_names", list)
    assert script.main(["--out", str(tmp_path / "results.json")]) == 0
    assert script.NOTHING in capsys.readouterr().out and not (tmp_path / "results.json").exists()


def processes_in(folder: Path) -> list[str]:
    """Processes that were started in a folder; those that have ended and were not waited for have no command any more."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(str(folder)):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return [command for command in found if command]


def test_all_parts_run_over_gloo(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = ["control", "loss", "restart", "--dry-run", "--trials", "1", "--limit-s", "300", "--folder", str(tmp_path)]
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *given, "--out", str(tmp_path / "out.json")], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    control, loss, restart = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert control["longest_pause_s"] < 2.4 and control["new_process_s"] > 0.0
    assert loss["how"] == "went on with 1 of 2 replicas" and 0.0 < loss["next_step_s"] <= loss["next_step_ended_s"] < loss["joined_after_s"]
    assert restart["saved_bytes"] > 0 and restart["how"].startswith("restarted") and restart["lost_steps"] >= 0
    assert not processes_in(tmp_path)


def test_what_does_not_come_in_time_is_told_and_ended(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from gpu_loss_parts import runs
    from small_run import make_corpus

    (tmp_path / "run").mkdir()
    how = {"layout": "dp=2,zero=1", "shares": "alone", "per_gpu": 2, "mps": None, "is_dry": True}
    corpus = make_corpus(tmp_path)
    monkeypatch.setattr(runs, "LOSS_KILLED_AFTER", 10**9)
    row = runs.lost(tmp_path / "run", corpus, runs.Clock(20.0), 1, **how)
    assert "in vain: the first steps" in row["trouble"] and "--- process" in row["told"], row
    assert not processes_in(tmp_path)


def test_a_part_that_breaks_leaves_the_next_one_its_turn(script: ModuleType) -> None:
    row = script.whole(lambda: {}["a"])
    assert row["trouble"] == "the benchmark broke: 'a'" and "KeyError" in row["told"]


def test_a_rank_that_hangs_says_where_it_is(script: ModuleType, tmp_path: Path) -> None:
    from gpu_loss_parts.diagnosis import stacks_of

    from meshwright.train.elastic.pulse import Stacks

    stacks = Stacks()
    child = os.fork()
    if not child:
        stacks.start()
        (tmp_path / "started").touch()
        time.sleep(60.0)
        os._exit(0)
    try:
        while not (tmp_path / "started").exists():
            time.sleep(0.01)
        assert "test_a_rank_that_hangs_says_where_it_is" in stacks_of(child)
        assert stacks_of(os.getppid()) == "it writes no stacks"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_process_goes_through_generations_without_a_model(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    variants = ["as-is", "no-kill-numbered"]
    given = [sys.executable, str(FOLDER / "gpu_loss_parts" / "rejoin.py"), *variants, "--dry-run", "--out", str(tmp_path / "out.json")]
    found = subprocess.run(given, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert {row["variant"]: row["ended"] for row in rows} == dict.fromkeys(variants, "ended well")
    assert sum("kills itself" in note for row in rows for note in row["notes"]) == 2
