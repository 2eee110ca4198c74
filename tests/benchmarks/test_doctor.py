"""The benchmark of the doctor claims nothing without a GPU; what it puts in is what it says."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshwright.doctor.nvidia import FIELDS

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench() -> Any:
    """The script as a module; its name is that of a package of ours, so it is loaded from its file."""
    spec = importlib.util.spec_from_file_location("bench_doctor", FOLDER / "doctor.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_doctor"] = module
    spec.loader.exec_module(module)
    return module


def test_without_a_gpu_it_says_so_and_claims_nothing(bench, monkeypatch, capsys):
    monkeypatch.setattr(bench, "gpu_names", list)
    monkeypatch.setattr(sys, "argv", ["doctor.py"])
    assert bench.main() == 0
    assert bench.NOTHING in capsys.readouterr().out


def test_a_call_on_a_fake_card_is_judged(bench):
    def call(wanted, alarms, failed, wall_s=20.0):
        return bench.Called("a case", wanted, alarms, failed, wall_s, None, None).is_right

    assert call("", (), ()) and call("copy", ("fail copy: slow",), ("copy", "product"))
    assert not call("", ("warn clock: off",), ()) and not call("copy", ("fail disk: slow",), ("disk",)) and not call("", (), (), 61.0)


def test_memory_errors_are_put_into_the_answer_at_their_place_only(bench, tmp_path, monkeypatch):
    real = tmp_path / "nvidia-smi"
    real.write_text("#!/bin/sh\necho '0, NVIDIA H200, 580.65.06, 143771, 0, 700.00, 0, No, No, 1545, 1980, 0x4'\n")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with bench.with_errors() as path:
        asked = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
        changed = subprocess.run(asked, env={"PATH": path}, capture_output=True, text=True, check=True).stdout
        untouched = subprocess.run(["nvidia-smi", "--list-gpus"], env={"PATH": path}, capture_output=True, text=True, check=True).stdout
    assert changed.split(", ")[6] == "3" and changed.split(", ")[:6] + changed.split(", ")[7:] == [
        word for i, word in enumerate(untouched.split(", ")) if i != 6
    ]
