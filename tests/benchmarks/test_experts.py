"""The benchmark of experts: the cases it asks for, and what its floor counts."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A part of the benchmark by name, or the script itself."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_all_parts_and_cases_are_asked_for(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, asked = part("experts"), []
    monkeypatch.setattr(script.h200, "main", lambda words: asked.append(words) or 0)
    assert script.main(["--dry-run"]) == 0
    assert [words[0] for words in asked] == ["correct", "forecast", "speed"]
    assert {"--floor", "--shares", "--dry-run"} <= set(asked[2]) and asked[2].count("--case") == asked[1].count("--case") == 4
    script.main(["--part", "speed", "--case", "qwen3-moe-4096", "--titan", "there"])
    assert asked[3].count("--case") == 1 and "there" in asked[3]


def test_a_part_that_breaks_does_not_end_the_others(part: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = part("experts")

    def main(words: list[str]) -> int:
        if words[0] == "correct":
            raise RuntimeError("no such kernel")
        print("Speed, today\n\n| case |\n| --- |\n| a |")
        return 0

    monkeypatch.setattr(script.h200, "main", main)
    assert script.main(["--folder", str(tmp_path)]) == 1
    assert "## speed\n\nSpeed, today\n\n| case |" in (tmp_path / "experts.md").read_text()


def test_a_call_that_is_ended_from_outside_ends(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, asked = part("experts"), []

    def main(words: list[str]) -> int:
        asked.append(words[0])
        raise SystemExit(143)

    monkeypatch.setattr(script.h200, "main", main)
    with pytest.raises(SystemExit) as ended:
        script.main([])
    assert ended.value.code == 143 and asked == ["correct"]


def test_the_parts_run_on_a_processor_with_tiny_models(tmp_path: Path) -> None:
    words = ["--dry-run", "--steps", "1", "--warmup", "1", "--case", "qwen3-moe-4096", "--folder", str(tmp_path)]
    done = subprocess.run([sys.executable, str(FOLDER / "experts.py"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "experts.md").read_text()
    assert "FAIL" not in page and page.count("| pass |") >= 20
    assert "no ratio" in page and "a layer with experts twice, bit by bit" in page and "weights of visits, compiled" in page
    (speed,) = json.loads((tmp_path / "speed.json").read_text())["speed"]
    assert sum(speed["loads"]) == 2 * 4096 // 128 and speed["profile"]["busy_s"] > 0
    (said,) = json.loads((tmp_path / "predict.json").read_text())["predicted"]
    assert said["step_s"] > 0 and "## Forecast and step" in page and "| predicted ms | measured ms | error |" in page
    profile = json.loads((tmp_path / "profile.json").read_text())
    assert len(profile["slices"]) == 1 and profile["grouped"] and not profile["left_out"]


def test_a_forecast_is_compared_with_the_step_that_computed_the_same_again(part: Any, tmp_path: Path) -> None:
    script = part("experts")
    said = [
        {"case": "deepseek-16b-4096", "words": f"a, {kind}", "recompute": kind, "step_s": step_s, "peak_bytes": 2**30}
        for kind, step_s in (("none", 1.0), ("full", 1.3))
    ]
    said.append({"case": "qwen3-moe-4096", "words": "b", "recompute": "none", "step_s": 0.5, "peak_bytes": 2**30})
    (tmp_path / "predict.json").write_text(json.dumps({"predicted": said}))
    assert script._compared(tmp_path) == ""
    ran = [
        {"case": "deepseek-16b-4096", "who": "ours", "recompute": "full", "mean_s": 1.25, "peak_bytes": 2**30},
        {"case": "deepseek-16b-4096", "who": "titan", "recompute": "none", "mean_s": 9.0, "peak_bytes": 2**30},
        {"case": "qwen3-moe-4096", "who": "ours", "mean_s": 0.5, "peak_bytes": 2**31},
    ]
    (tmp_path / "speed.json").write_text(json.dumps({"speed": ran}))
    lines = script._compared(tmp_path).splitlines()
    assert lines[2] == "| a, full | 1300.0 | 1250.0 | +4.0 % | 1.00 | 1.00 | +0.0 % |"
    assert lines[3] == "| b | 500.0 | 500.0 | +0.0 % | 1.00 | 2.00 | -50.0 % |" and len(lines) == 7


def test_cases_of_one_model_and_length_are_measured_once(part: Any) -> None:
    cases, measured = part("h200_parts.cases"), part("h200_parts.measured")
    found = measured.distinct([*cases.EXPERTS, part("dataclasses").replace(cases.EXPERTS[0], recompute="full")])
    assert [(case.model, case.seq_len) for case in found] == [(case.model, case.seq_len) for case in cases.EXPERTS]


def test_a_setting_that_does_not_fit_is_followed_by_the_next(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, cases, child = part("h200"), part("h200_parts.cases"), part("h200_parts.child")
    tried: list[str] = []

    def run(module: str, options: list[str], clock: Any, **_: Any) -> dict[str, Any] | None:
        tried.append(cases.case_of(options[1]).recompute)
        clock.num_failed += len(tried) == 1
        return None if len(tried) == 1 else {"tokens_per_s": 1.0, "mean_s": 1.0, "cv": 0.0, "peak_bytes": 1, "child_s": 1.0}

    monkeypatch.setattr(script, "run", run)
    given = Namespace(warmup=1, steps=1, device="cpu")
    results, clock = child.Results(None, {}), child.Clock(100.0)
    case = next(case for case in cases.EXPERTS if case.name == "deepseek-16b-8192")
    script._timed("titan", case, given, results, clock, "speed", None)
    first, second, *_ = cases.settings(case, "titan")
    assert tried == [first.recompute, second.recompute] and clock.num_failed == 0
    assert results.rows("speed")[0]["recompute"] == second.recompute != first.recompute


def test_kernels_of_experts_are_of_a_known_kind(part: Any) -> None:
    kinds = part("h200_parts.kinds")
    products = ("_product", "_weight_gradient", "void cutlass::device_kernel<at::cuda::detail::GemmUniversal>")
    assert {kinds.kind_of(name, 0.0, {}) for name in products} == {"GEMM"}
    others = ("_count", "_scan", "_place", "_copy_rows", "_sum_rows", "_gate", "_gate_back", "_sum_groups", "_highest")
    assert {kinds.kind_of(name, 0.0, {}) for name in others} == {"norms and elementwise"}
    assert kinds.kind_of("_round_rows", 0.0, {}) == "fp8 scales and casts"


def test_the_models_are_as_large_as_their_names_say(part: Any) -> None:
    mixtures = part("h200_parts.mixtures")
    assert mixtures.DEEPSEEK.num_parameters == pytest.approx(15.7e9, rel=0.01)
    assert mixtures.QWEN.num_parameters == pytest.approx(10.6e9, rel=0.01)
    assert set(mixtures.TINY_OF.values()) <= mixtures.MIXTURES.keys()


def test_the_floor_counts_every_product_of_a_token_once(part: Any) -> None:
    floor, mixtures = part("h200_parts.floor"), part("h200_parts.mixtures")
    for model in (mixtures.QWEN, mixtures.DEEPSEEK):
        experts = model.experts
        products = sum(num_in * num_out * count for num_in, num_out, count in floor.shapes_of(model).values())
        routed = model.num_expert_layers * experts.num_active * 3 * model.hidden * experts.hidden
        idle = model.num_expert_layers * (experts.num_experts - experts.num_active) * 3 * model.hidden * experts.hidden
        weights = model.num_parameters - idle - model.embedding_parameters
        assert products + routed == pytest.approx(weights, rel=1e-3)  # all but norms
        case = next(case for case in part("h200_parts.cases").EXPERTS if case.model == model.name)
        loads = floor.even_loads(case, model)
        assert sum(loads) == case.num_tokens * experts.num_active
        assert max(loads) - min(loads) <= 1
