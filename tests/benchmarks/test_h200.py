"""The benchmark of one GPU claims nothing without one, and its tables say what was measured, no more."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
COMMANDS = ("speed", "floor", "choices", "profile", "steady", "correct", "predict")
CLAIM = "nothing was measured, and nothing is claimed"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A part of the benchmark by name, or the script itself."""
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def timed(who: str, tokens_per_s: float, **more: Any) -> dict[str, Any]:
    """One measurement of 1,000 tokens per step."""
    figures = {"mean_s": 1000 / tokens_per_s, "tokens_per_s": tokens_per_s, "cv": 0.001, "peak_bytes": 2**30, "joules_per_token": 0.05}
    return {"case": "a", "words": "case a", "who": who, "num_parameters": 7, **figures, **more}


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_gpu_a_command_says_so_and_claims_nothing(
    command: str, part: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = part("h200")
    monkeypatch.setattr(script, "_device", lambda: None)
    assert script.main([command, "--out", str(tmp_path / "out.json")]) == 0
    assert capsys.readouterr().out == f"no GPU here: {CLAIM}\n"
    assert not any(tmp_path.iterdir())


def test_without_torch_the_script_says_the_same(tmp_path: Path) -> None:
    run = f"runpy.run_path({str(FOLDER / 'h200.py')!r}, run_name='__main__')"
    code = f"import runpy, sys; sys.modules['torch'] = None; sys.argv = ['h200', 'speed']; {run}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"no GPU here: {CLAIM}\n"), done.stderr


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fast"],
        ["speed", "--case", "9b"],
        ["speed", "--rounds", "0"],
        ["speed", "--rounds", "-1"],
        ["speed", "--steps", "many"],
        ["speed", "--titan", "a", "--no-peer"],
        ["floor", "--limit-s", "nan"],
        ["correct", "--part", "hope"],
        ["steady", "--steps", "1e9"],
        ["steady", "--steps", "9"],
    ],
)
def test_wrong_words_are_refused(words: list[str], part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        part("h200").main(words)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_ratio_is_given_where_both_were_measured(part: Any) -> None:
    content = {
        "speed": [timed("ours", 1100.0), timed("ours", 1300.0), timed("ours", 1200.0), timed("titan", 1000.0, peak_bytes=2**31)],
        "floor": [{"case": "a", "tokens_per_s": 1500.0}],
    }
    ours, theirs = part("h200_parts.tables").speed_table(content).splitlines()[2:4]
    assert ours == "| case a | meshwright | 1,200 | 833.3 | 0.10 % | 1.00 | 0.0500 | 1.200x | 0.500x | 80.0 % |"
    assert theirs == "| case a | torchtitan 0.2.2 | 1,000 | 1000.0 | 0.10 % | 2.00 | 0.0500 | - | - | 66.7 % |"


def test_without_the_peer_there_is_no_ratio(part: Any) -> None:
    table = part("h200_parts.tables").speed_table({"speed": [timed("ours", 1100.0, joules_per_token=None)]})
    assert "| - | - | - | - |" in table
    assert table.endswith("case a: no ratio: torchtitan was not measured in this call.")


def test_what_was_not_comparable_or_refused_is_reported(part: Any) -> None:
    tables = part("h200_parts.tables")
    unlike = {"speed": [timed("ours", 1100.0), timed("titan", 1000.0, num_parameters=8)]}
    assert "the models differ: 7 and 8 parameters" in tables.speed_table(unlike)
    refused = {"speed": [{"case": "a", "words": "case a", "who": "ours", "refused": "no fp8 here"}]}
    assert "case a: not run: no fp8 here." in tables.speed_table(refused)


def test_the_best_way_of_each_part_is_named_with_what_it_changes(part: Any) -> None:
    rows = [
        {"unit": "layer", "count": 2, "part": "o forward", "unit_s": 1e-2, "best": "3", "changes_s": {"0": 1e-4, "3": -2e-4}},
        {"unit": "layer", "count": 2, "part": "attention", "unit_s": 1e-2, "best": "torch", "changes_s": {"flash": 5e-3}},
        {"unit": "layer", "count": 2, "part": "all at their best", "unit_s": 1e-2, "best": "", "change": -0.021, "spread": 0.002},
    ]
    table = part("h200_parts.tables").choices_table({"choices": [{"words": "a case", "rows": rows}]}).splitlines()[2:]
    assert table == [
        "| a case | layer | o forward | 3 | 3 | -2.00 % | 20.0 |",
        "| a case | layer | attention | 2 | torch | +0.00 % | 20.0 |",
        "| a case | layer | all at their best | - | - | -2.10 ± 0.20 % | 20.0 |",
    ]


def test_records_are_made_in_every_other_turn_and_their_cost_is_reported(part: Any) -> None:
    steady = part("h200_parts.steady")
    num_before, size = 20, steady.TURN_STEPS
    table = [steady.has_records(step, num_before) for step in range(1, num_before + 2 * size + 1)]
    assert table == [True] * num_before + [False] * size + [True] * size
    marks, now_s = steady.Marks(is_gpu=False), 0.0
    for step in range(1, num_before + steady.NUM_TURNS * size + 1):  # a step's record is made after its update, within the next one's time
        now_s += 1.01 if step == 1 or steady.has_records(step - 1, num_before) else 1.0
        marks.times.append(now_s)
    found = steady.turns(marks, num_before)
    assert (found["on_s"], found["off_s"]) == (pytest.approx(1.01), pytest.approx(1.0))
    assert found["turns_error"] == pytest.approx(0.0, abs=1e-9)


def test_losses_are_judged_against_their_reference(part: Any) -> None:
    rows = [
        {"precision": "bf16", "is_moved": True, "losses": [5.0, 2.0301], "last_mean": 2.0301},  # in whatever order they end
        {"precision": "bf16", "is_moved": False, "losses": [5.0, 2.02], "last_mean": 2.02},
        {"precision": "fp8-current", "is_moved": False, "losses": [5.0, 2.03], "last_mean": 2.03},
        {"precision": "fp32", "is_moved": False, "losses": [5.0, 2.0], "last_mean": 2.0},
    ]
    table = part("h200_parts.tables").loss_table({"loss": rows}).splitlines()
    assert table[3].endswith("| fp32 | +1.000 % | 1.000 % | FAIL (bound 0.5%) |")
    assert table[4].endswith("| bf16 | +0.495 % | 0.495 % | pass (bound 1.0%) |")
    assert table[5].startswith("| bf16, first weights rounded") and table[5].endswith("| bf16 | +0.500 % | 0.500 % | by chance |")
    alone = part("h200_parts.tables").loss_table({"loss": rows[1:2]})
    assert "not judged: no reference" in alone and "pass" not in alone


def test_a_check_beyond_its_bound_fails_and_one_left_out_is_named(part: Any) -> None:
    rows = [
        {"what": "norm", "against": "float64", "error": 1e-3, "bound": 1e-2},
        {"what": "loss", "against": "float64", "error": float("nan"), "bound": 1e-2},
        {"what": "rotary", "broke": "TypeError: no"},
        {"what": "fp8", "skipped": "refused"},
    ]
    table = part("h200_parts.tables").checks_table({"checks": rows})
    assert "| norm | float64 | 1.00e-03 | 1.00e-02 | pass |" in table
    assert "| loss | float64 | nan | 1.00e-02 | FAIL |" in table
    assert "| rotary | it broke: TypeError: no | - | - | FAIL |" in table
    assert table.endswith("fp8: not checked: refused.")


def test_errors_of_predictions_are_reported_for_measured_cases_alone(part: Any) -> None:
    predicted = [{"case": c, "words": c, "step_s": 1.1, "peak_bytes": 2**30} for c in "ab"]
    table = part("h200_parts.tables").predict_table(
        {"predicted": predicted, "measured": [{"case": "a", "mean_s": 1.0, "peak_bytes": 2**30}]}
    )
    assert "| a | 1100.0 | 1000.0 | +10.0 % | 1.00 | 1.00 | +0.0 % |" in table
    assert "| b | 1100.0 | - | - | 1.00 | - | - |" in table
    assert "Step: mean 10.0 %, worst 10.0 %, 1 cases." in table


def test_each_moment_is_counted_once_and_unknown_kernels_are_listed(part: Any) -> None:
    kinds = part("h200_parts.kinds")
    kernels = [
        ("nvjet_hsh_128x256", (0.0, 0.4)),
        ("triton_poi_fused__scaled_dot_product_cudnn_attention_add_mul_0", (0.3, 0.5)),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop", (0.6, 0.7)),
        ("update", (0.7, 0.8)),
        ("a_kernel_nobody_named", (0.8, 0.9)),
        ("a_kernel_nobody_named", (0.9, 0.95)),
        ("_gate_back", (1.0, 1.1)),
    ]
    found = kinds.summed(kernels, {"optimizer": [], "loss": [(0.79, 0.85)]}, 1.3)
    expected = {
        "GEMM": 0.4,
        "norms and elementwise": 0.2,
        "attention": 0.1,
        "optimizer": 0.1,
        "loss": 0.1,
        "other": 0.05,
        "launch gaps": 0.15,
    }
    assert {kind: value for kind, value in found["by_kind_s"].items() if value} == pytest.approx(expected)
    assert found["traced_s"] == pytest.approx(1.1) and found["step_s"] == 1.3, "gaps are the trace's, not another step's"
    assert [(count, name) for _, count, _, name in found["unknown"]] == [(1, "a_kernel_nobody_named")]
    row = {"words": "case a", "trainer": "meshwright", "profile": found}
    assert "`a_kernel_nobody_named`" in kinds_table(part, row)
    empty = {"words": "case b", "trainer": "meshwright", "profile": kinds.summed([], {}, 1.0)}
    assert "| case b | meshwright | 1000.0 | 0.0 | - | - |" in kinds_table(part, empty)


def kinds_table(part: Any, row: dict[str, Any]) -> str:
    return part("h200_parts.tables").profile_table({"profile": [row]})


def test_the_floors_products_are_six_flops_a_parameter_and_token(part: Any) -> None:
    pytest.importorskip("torch")
    cases, floor = part("h200_parts.cases"), part("h200_parts.floor")
    for case in cases.ASKED:
        model = cases.model_of(case)
        flops = sum(
            2 * count * m * k * n
            for num_in, num_out, count in floor.shapes_of(model).values()
            for m, k, n in (floor.sides(way, num_in, num_out, case.num_tokens) for way in floor.PASSES)
        )
        norms = (2 * model.num_layers + 1) * model.hidden
        assert flops == 6 * case.num_tokens * (model.num_parameters - model.vocab_size * model.hidden - norms)


def test_bytes_of_an_update_follow_the_states(part: Any) -> None:
    cases = part("h200_parts.cases")
    each = {case.states: sum(cases.state_bytes_per_parameter(case).values()) for case in cases.ASKED}
    assert each == {"bf16": 14, "fp32": 28}


def test_a_case_survives_its_line_of_json(part: Any) -> None:
    cases = part("h200_parts.cases")
    for case in (*cases.ASKED, *cases.OTHERS):
        assert cases.case_of(case.to_json()) == case


def test_results_are_on_disk_as_they_come(part: Any, tmp_path: Path) -> None:
    results = part("h200_parts.child").Results(tmp_path / "out.json", {"command": "speed"})
    results.add("speed", {"case": "a"})
    assert json.loads((tmp_path / "out.json").read_text()) == {"command": "speed", "speed": [{"case": "a"}]}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_child_that_fails_leaves_its_last_lines(part: Any, capsys: pytest.CaptureFixture[str]) -> None:
    child = part("h200_parts.child")
    clock = child.Clock(60.0)
    assert child.run("cases_that_do_not_exist", [], clock) is None
    assert clock.num_failed == 1
    printed = capsys.readouterr().out
    assert "gave no result: exit status 1" in printed and "No module named h200_parts.cases_that_do_not_exist" in printed
    assert child.run("ours", [], child.Clock(1.0)) is None
    assert "not run: 1 s of this call are left" in capsys.readouterr().out


def test_a_product_is_described_to_the_library_as_it_lies(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    form_of, lt = part("h200_parts.cublaslt").Form.of, part("h200_parts.cublaslt")
    monkeypatch.setattr(lt, "ALIGNMENT", 1)
    left, right, out = torch.zeros(4, 8).bfloat16(), torch.zeros(16, 8).bfloat16(), torch.zeros(4, 16).bfloat16()
    assert form_of(left, right.T, out) == (4, 8, 16, False, 8, True, 8, 16)
    assert form_of(left.T, out, right.T.contiguous()) == (8, 4, 16, True, 8, False, 16, 16)
    assert form_of(left.float(), right.T.float(), out.float()) is None  # numbers of another kind
    assert form_of(left, right.T, out.T.contiguous().T) is None  # a result may not lie turned
    monkeypatch.setattr(lt, "ALIGNMENT", 256)
    room = torch.zeros(4 * 8 + 1, dtype=torch.bfloat16)
    assert form_of(room[1:].view(4, 8), right.T, out) is None  # addresses that algorithms may not count on
