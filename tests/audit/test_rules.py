from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.audit.rules import benchmark_named, benchmarks, round_named, round_of_date, round_order
from meshwright.errors import InputError
from meshwright.evidence.mlperf import BENCHMARKS


def test_every_benchmark_of_the_table_has_its_rules() -> None:
    assert set(benchmarks()) == set(BENCHMARKS)
    assert {name: rules.num_runs for name, rules in benchmarks().items()} == {
        "gpt3": 3,
        "llama2_70b_lora": 10,
        "llama31_405b": 3,
        "llama31_8b": 10,
        "deepseekv3_671b": 3,
        "gpt_oss_20b": 10,
    }


def test_the_rules_are_those_of_mlperf_logging() -> None:
    meta = pytest.importorskip("mlperf_logging.benchmark_meta")
    counts = meta.get_result_file_counts("training")
    for name, rules in benchmarks().items():
        assert rules.num_runs == counts[name]
        assert all(name in meta.get_allowed_benchmarks("training", f"{number[1:]}.0") for number in rules.rounds)


def test_the_reference_points_are_those_of_mlperf_logging() -> None:
    import json

    package = pytest.importorskip("mlperf_logging")
    folder = Path(package.__file__).parent / "rcp_checker"
    for name, rules in benchmarks().items():
        last = max((number for number in rules.rounds if number != "v6.1"), key=round_order)
        points = json.loads((folder / f"training_{last[1:]}.0" / f"rcps_{name}.json").read_text())
        unit = 2048 if name == "gpt3" else 1  # tokens there
        for point in points.values():
            runs = sorted(next(value for key, value in point.items() if "converge" in key.lower()))[1:-1]
            assert rules.reference[point["BS"]] == pytest.approx(sum(runs) / len(runs) / unit, abs=1)


@pytest.mark.parametrize(
    "text, name",
    [
        ("gpt3", "gpt3"),
        ("GPT-3 175B", "gpt3"),
        ("mlperf-gpt3", "gpt3"),
        ("llama2-70b-lora", "llama2_70b_lora"),
        ("Llama 3.1 405B", "llama31_405b"),
    ],
)
def test_a_benchmark_has_several_spellings(text: str, name: str) -> None:
    assert benchmark_named(text) == name


def test_an_unknown_benchmark_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"no benchmark named 'bert'(.|\n)*llama31_405b"):
        benchmark_named("bert")


@pytest.mark.parametrize("text", ["v4.1", "4.1", "V4.1", "MLPerf Training v4.1", "mlperf v4.1", "4.1.0"])
def test_a_round_has_several_spellings(text: str) -> None:
    assert round_named(text) == "v4.1"


@pytest.mark.parametrize("text", ["", "four", "v4", "4.1.2", "v4.1 preview"])
def test_what_is_no_round_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a round of MLPerf Training"):
        round_named(text)


@pytest.mark.parametrize(
    "time_ms, name",
    [(1696466228407, "v3.1"), (1745739657315, "v5.0"), (1759832646940, "v5.1"), (0, ""), (9e15, ""), (4e12, ""), (1e300, "")],
)
def test_a_date_tells_the_round(time_ms: float, name: str) -> None:
    assert round_of_date(time_ms) == name


def test_a_date_does_not_tell_a_round_that_lacked_the_benchmark() -> None:
    assert round_of_date(1696466228407, "gpt3") == "v3.1"
    assert round_of_date(1696466228407, "llama31_405b") == ""


def test_reference_samples_lie_on_a_line_between_points_and_are_the_fewest_without_a_batch() -> None:
    lora = benchmarks()["llama2_70b_lora"]
    assert lora.reference_samples(8) == 3179
    assert lora.reference_samples(64) == pytest.approx((6037 * 11264) ** 0.5, rel=1e-9)  # 64 is halfway from 32 to 128 in logarithms
    assert lora.reference_samples(0) == 3179
