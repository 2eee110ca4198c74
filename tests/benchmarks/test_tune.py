"""What `benchmarks/tune.py` measures and shows: cases, the floor's bytes, and ratios that need both of their sides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from tune_parts import tables
from tune_parts.cases import CALLS, CASES, case_of, chosen, layout_of, model_of, workload_of
from tune_parts.fetch import is_used

from meshwright.plan.stack.own import check_trainable


def test_cases_come_back_from_their_line_and_the_trainer_runs_them() -> None:
    for case in CASES:
        assert case_of(case.to_json()) == case
        check_trainable(model_of(case), workload_of(case), layout_of(case))
    assert {case.seq_len for case in CASES} == {2048, 8192} and len(chosen([], is_dry=True)) == len(CASES)
    assert [case.name for case in chosen(["8b-2048"], is_dry=False)] == ["8b-2048"]


def test_the_floor_counts_the_bytes_of_a_base_in_few_bits_and_of_the_adapters() -> None:
    pytest.importorskip("torch")
    from tune_parts.floor import STATE_BYTES, bytes_moved

    (case,) = chosen(["8b-8192-fp8"], is_dry=False)
    found = bytes_moved(case, model_of(case))
    layers, qkv, into = 32, 4096 + 2 * 1024, 2 * 14336
    elements = layers * (4096 * qkv + 4096 * 4096 + 4096 * into + 14336 * 4096)
    assert found["base in few bits"] == 2 * 3 * elements
    pairs = 16 * layers * (3 * 4096 + qkv + 4096 + 4096 + 2 * 4096 + into + 14336 + 4096)
    assert found["optimizer"] == STATE_BYTES * pairs


def test_two_calls_cover_every_case() -> None:
    assert sorted(name for names in CALLS.values() for name in names) == sorted(case.name for case in CASES)
    assert [case.name for case in chosen(CALLS["second"], is_dry=False)] == list(CALLS["second"])


def test_what_is_brought_leaves_out_what_no_training_uses() -> None:
    names = [
        "unsloth/models/llama.py",
        "studio/frontend/a.js",
        "bitsandbytes/libbitsandbytes_cuda130.so",
        "bitsandbytes/libbitsandbytes_cpu.so",
    ]
    assert [is_used(name) for name in (*names, "pandas/tests/a.py", "pyarrow/include/a.h", "pyarrow/libarrow_flight.so")] == [
        True,
        False,
        True,
        *(4 * [False]),
    ]
    assert is_used("torchao/prototype/custom_fp_utils.py")  # torchao's own quantization imports it


def row(who: str, tokens_per_s: float) -> dict[str, object]:
    figures = {"mean_s": 0.5, "cv": 0.01, "tokens_per_s": tokens_per_s, "peak_bytes": 2**30}
    return {"case": "a", "words": "a case", "who": who, "trainer": who, "num_tokens": 8192, **figures}


def test_ratios_are_against_the_best_peer_of_the_same_call() -> None:
    content = {
        "speed": [row("ours", 120.0), row("trl_peft", 90.0), row("trl_peft", 100.0)],
        "floor": [{"case": "a", "tokens_per_s": 150.0}],
    }
    first = tables.speed_table(content).splitlines()[2]
    assert "| 1.200x | 1.000x | 80.0 % |" in first
    alone = tables.speed_table({"speed": [row("ours", 120.0)]}).splitlines()[2]
    assert "| - | - | - |" in alone


def test_a_forecast_stands_beside_what_was_measured() -> None:
    content = {"speed": [row("ours", 120.0)], "forecast": [{"case": "a", "step_s": 0.51, "peak_bytes": 2**29}]}
    assert "| 510.0 | +2.0 % | 0.50 | -50.0 % |" in tables.speed_table(content)
    refused = {"speed": [row("ours", 120.0)], "forecast": [{"case": "a", "refused": "it does not fit"}]}
    assert "a case: no forecast: it does not fit." in tables.speed_table(refused)


def test_wrong_kernels_and_losses_are_shown() -> None:
    checked = {"rows": [{"what": "nf4 5 x 64", "is_right": False, "worst": 0.25}], "has_kernels": True}
    assert "| nf4 5 x 64 | WRONG | 2.5e-01 |" in tables.kernel_table({"kernels": [checked]})
    assert tables.kernel_table({}) == ""
    other = {**row("unsloth", 80.0), "last_loss": 11.76}
    lines = tables.speed_table({"speed": [row("ours", 120.0), other]}).splitlines()
    assert "| 1.500x | - |" in lines[2] and "| 11.760 |" in lines[3]


def test_unsloth_comes_after_all_other_measurements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tune
    from h200_parts.child import Clock, Results

    asked: list[str] = []
    monkeypatch.setattr(tune, "_child", lambda who, *_: asked.append(who))
    (tmp_path / "trl").mkdir()
    given = tune._parser().parse_args(
        ["--call", "first", "--site", str(tmp_path)] + [f"--part={part}" for part in ("ours", "unsloth", "floor")]
    )
    tune._measure(given, Results(None, {}), Clock(1.0))
    assert asked == ["ours", "floor", "ours", "floor", "unsloth", "unsloth"]


def test_a_trainer_without_kept_losses_gives_its_times(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from h200_parts.recorder import Recorder
    from tune_parts.trl_peft import read_losses

    recorder = Recorder("cpu", 0, 10)
    recorder.start()
    recorder.done(None)
    capsys.readouterr()
    read_losses(SimpleNamespace(), recorder)
    assert recorder.result()["last_loss"] is None and capsys.readouterr().out == ""
    read_losses(SimpleNamespace(kept_losses=[11.8]), recorder)
    assert recorder.result()["last_loss"] == 11.8


def test_a_call_measures_layers_with_its_adapters_and_forecasts_from_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    parts = [f"--part={name}" for name in ("measure", "forecast", "ours")]
    script, out = Path(__file__).parents[2] / "benchmarks" / "tune.py", tmp_path / "second.json"
    words = ["--dry-run", "--case", "8b-2048-nf4", *parts, "--warmup", "1", "--steps", "1", "--out", str(out)]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["measured_profile"][0]["num_slices"] == 1 and found["forecast"][0]["step_s"] > 0
    profile = json.loads((tmp_path / "second-profile.json").read_text())
    assert profile["slices"][0]["adapters"]["base"] == "nf4" and {one["base"] for one in profile["made"]} == {"nf4"}


def test_layers_that_are_computed_again_are_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tune
    from h200_parts.child import Clock, Results

    asked: list[list[str]] = []
    monkeypatch.setattr(tune, "run", lambda module, options, clock, **_: asked.append(options))
    for call, names in (("first", ["8b-8192", "8b-2048"]), ("second", ["8b-8192-fp8", "8b-8192-nf4"])):
        given = tune._parser().parse_args(["--call", call, "--out", str(tmp_path / "a.json")])
        given.device = "cpu"
        assert tune._profile(chosen(CALLS[call], is_dry=False), given, Results(None, {}), Clock(1.0)) is None
        cases = [case_of(line).name for line in asked[-1] if line.startswith("{")]
        assert cases == names
