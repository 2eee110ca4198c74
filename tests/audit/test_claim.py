from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.audit.claim import KEYS, changed, claim_of, read_claim
from meshwright.errors import InputError


def test_a_claim_is_read_in_si_units_with_its_rounding() -> None:
    run = claim_of({"benchmark": "GPT-3 175B", "round": "4.0", "accelerator": "H100", "gpus": 1024, "minutes": 9.87}, "x").run
    assert (run.benchmark, run.round, run.accelerator, run.gpus) == ("gpt3", "v4.0", "h100", 1024)
    assert run.duration_s is not None and run.duration_s.value == pytest.approx(592.2) and run.duration_s.high == pytest.approx(592.5)


@pytest.mark.parametrize("key, value, seconds", [("seconds", 90, 90), ("minutes", 1.5, 90), ("hours", 2, 7200), ("days", 1, 86400)])
def test_a_time_has_four_units(key: str, value: float, seconds: float) -> None:
    duration = claim_of({key: value}, "x").run.duration_s
    assert duration is not None and duration.value == seconds


def test_samples_follow_from_steps_and_batch() -> None:
    assert claim_of({"steps": 324, "global_batch": 1024}, "x").run.samples == 331776


def test_a_round_tells_the_benchmark_of_a_model() -> None:
    assert claim_of({"model": "gpt-3-175b", "round": "v4.0"}, "x").run.benchmark == "gpt3"
    assert claim_of({"model": "gpt-3-175b"}, "x").run.benchmark == ""


def test_a_baseline_takes_over_what_must_be_the_same() -> None:
    claim = claim_of({"benchmark": "gpt3", "accelerator": "h100", "gpus": 8, "round": "v4.0", "baseline": {"gpus": 4}}, "x")
    assert claim.baseline is not None
    assert (claim.baseline.benchmark, claim.baseline.accelerator, claim.baseline.gpus, claim.baseline.round) == ("gpt3", "h100", 4, "")


def test_faster_by_per_cent_is_a_speed_up() -> None:
    claim = claim_of({"faster_pct": 28}, "x")
    assert claim.speedup is not None and (claim.speedup.value, claim.speedup.low, claim.speedup.high) == pytest.approx((1.28, 1.275, 1.285))


@pytest.mark.parametrize(
    "table, complaint",
    [
        ({"gpu": 8}, "unknown key 'gpu'(.|\n)*did you mean gpus(.|\n)*known keys: benchmark, model"),
        ({"zzzz": 8, "yyyy": 1}, r"unknown key 'zzzz' \(and 1 more\)(.|\n)*use one of accelerator"),
        ({"baseline": {"minute": 8}}, r"unknown key 'minute'(.|\n)*\[baseline\] in x(.|\n)*minutes"),
        ({"baseline": 3}, "baseline is 3, not a table"),
        ({"gpus": 3.5}, "gpus is 3.5"),
        ({"gpus": 0}, "gpus is 0"),
        ({"gpus": -8}, "gpus is -8"),
        ({"gpus": "8"}, "gpus is '8'"),
        ({"gpus": True}, "gpus is True"),
        ({"minutes": 0}, "minutes is 0"),
        ({"minutes": -1.0}, "minutes is -1.0"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"minutes": float("inf")}, r"minutes is inf(.|\n)*write a finite number: minutes = 1\.5"),
        ({"minutes": -3}, r"minutes is -3(.|\n)*give a number above 0"),
        ({"scaling": "big"}, r"scaling is 'big'(.|\n)*use '', 'weak' or 'strong'"),
        ({"record": 5}, r"record is 5(.|\n)*write record = true or record = false"),
        ({"minutes": 10**400}, "minutes is"),
        ({"minutes": 1e-300}, r"minutes is 1e-300(.|\n)*the value should be at least 1e-12"),
        ({"variation_pct": [0.1, -0.2]}, r"variation_pct\.1 is -0\.2"),
        ({"variation_pct": "little"}, r"variation_pct\.0 is 'little'"),
        ({"mfu_pct": 0.45}, "it is in per cent(.|\n)*write 45"),
        ({"minutes": "seven"}, "minutes is 'seven'"),
        ({"minutes": 7, "hours": 1}, "minutes and hours are both given"),
        ({"accelerator": "h101"}, "no accelerator named 'h101'(.|\n)*h100"),
        ({"model": "gpt-5"}, "no model named 'gpt-5'"),
        ({"benchmark": "resnet"}, "no benchmark named 'resnet'"),
        ({"benchmark": "gpt3", "model": "llama-3.1-8b"}, "benchmark gpt3 trains gpt-3-175b, not llama-3.1-8b"),
        ({"round": "next"}, "'next' is not a round"),
        ({"precision": "fp7"}, "no precision named 'fp7'"),
        ({"scaling": "sideways"}, "scaling is 'sideways'"),
        ({"variation_of": "luck"}, "variation_of is 'luck'"),
        ({"variation_pct": [0.1, 0.2, 0.3]}, "variation_pct has 3 values"),
        ({"variation_pct": []}, "variation_pct has 0 values"),
        ({"expected": "true"}, "no verdict named 'true'"),
        ({"speedup": 2, "faster_pct": 100}, "speedup and faster_pct are both given"),
        ({"samples": 100, "steps": 3, "global_batch": 4}, "samples is 100, but steps x global_batch = 3 x 4 = 12"),
        ({"efficiency_pct": 0.998}, "it is in per cent(.|\n)*write 99.8"),
        ({"largest_of": "h101"}, "no accelerator named 'h101'"),
        ({"cluster": "moon"}, "no cluster named 'moon'"),
    ],
)
def test_bad_input_is_refused_with_the_key(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        claim_of(table, "x")


def test_a_change_takes_the_place_of_another_way_to_say_it() -> None:
    table = {"minutes": 7, "gpus": 8, "faster_pct": 28, "baseline": {"minutes": 9, "gpus": 4}}
    after = changed(table, {"days": 1, "speedup": 2.0, "baseline": {"hours": 3}})
    assert after == {"gpus": 8, "days": 1, "speedup": 2.0, "baseline": {"gpus": 4, "hours": 3}}


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        read_claim(tmp_path / "nowhere.toml")
    (tmp_path / "bad.toml").write_text("gpus = = 3")
    with pytest.raises(InputError, match="not valid TOML"):
        read_claim(tmp_path / "bad.toml")


def test_every_key_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert [key for key in KEYS if f"`{key}`" not in text] == []
