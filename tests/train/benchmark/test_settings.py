"""Under which names a run may be logged: our own always, an official one only with that benchmark's settings."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from logged import LLAMA_8B, LORA_70B, SMALL

from meshwright.describe.load import load_model
from meshwright.errors import InputError
from meshwright.train.benchmark.settings import NOT_SHAPES, OFFICIAL, OWN, OWN_RULES, LogSettings, check_settings


def refusal(settings: LogSettings, benchmark: str = "llama31_8b") -> str:
    with pytest.raises(InputError) as caught:
        check_settings(benchmark, settings)
    assert caught.value.fix
    return caught.value.what


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(InputError, match=f"use one of {OWN}, {', '.join(OFFICIAL)}"):
        check_settings("llama31_405b", LLAMA_8B)


def test_any_settings_may_be_logged_under_our_own_name() -> None:
    check_settings(OWN, SMALL)
    check_settings(OWN, LLAMA_8B)
    assert OWN_RULES.is_file()


def test_the_benchmarks_own_settings_pass_under_its_name() -> None:
    check_settings("llama31_8b", LLAMA_8B)
    check_settings("llama2_70b_lora", LORA_70B)


@pytest.mark.parametrize("name", [spec.name for spec in fields(LogSettings) if spec.name in OFFICIAL["llama31_8b"].fixed])
def test_each_fixed_setting_counts(name: str) -> None:
    value = getattr(LLAMA_8B, name)
    assert refusal(replace(LLAMA_8B, **{name: value * 2})) == f"the run is not MLPerf's llama31_8b: {name} is {value * 2}, not {value}"


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1, "global_batch": 32, "gradient_accumulation_steps": 8, "micro_batch": 4},
        {"base_learning_rate": 1e-3, "end_learning_rate": 0.0},
        {"warmup_steps": 1000, "decay_steps": 1_199_000},  # together still those of the rules
        {"tp": 8, "pp": 4, "cp": 2, "precision": "fp8", "platform": "a machine", "organisation": "us"},
        {"train_samples": 7},
    ],
)
def test_what_the_rules_leave_open_is_the_submitters_choice(changes: dict[str, object]) -> None:
    check_settings("llama31_8b", replace(LLAMA_8B, **changes))


def test_warm_up_and_decay_count_together() -> None:
    assert "warm-up and decay take 1200001 steps, not 1200000" in refusal(replace(LLAMA_8B, warmup_steps=17))


def test_a_model_counts_by_its_shapes_and_not_by_its_name_or_sources() -> None:
    check_settings("llama31_8b", replace(LLAMA_8B, model=replace(LLAMA_8B.model, name="mine", sources={})))
    assert refusal(replace(LLAMA_8B, model=replace(LLAMA_8B.model, rotary_theta=1e4))).endswith(
        "model.rotary_theta is 10000.0, not 500000.0"
    )
    assert set(NOT_SHAPES) < {spec.name for spec in fields(LLAMA_8B.model)}


def test_all_differences_are_named_at_once() -> None:
    what = refusal(replace(LLAMA_8B, target=3.5, clip_norm=2.0, model=replace(LLAMA_8B.model, num_layers=4)))
    assert what.count(";") == 2 and all(name in what for name in ("model.num_layers", "target", "clip_norm"))


@pytest.mark.parametrize("name", OFFICIAL)
def test_official_benchmarks_name_a_model_of_the_catalogue_and_fields_of_the_settings(name: str) -> None:
    official = OFFICIAL[name]
    assert load_model(official.model).name == official.model
    assert set(official.fixed) <= {spec.name for spec in fields(LogSettings)} and official.num_schedule_steps <= official.fixed["max_steps"]
