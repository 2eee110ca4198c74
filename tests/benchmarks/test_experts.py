"""The benchmark of experts: the cases it asks for, and what its floor counts."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A part of the benchmark by name, or the script itself."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_all_cases_with_their_floors_are_asked_for(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    script, asked = part("experts"), []
    monkeypatch.setattr(script.h200, "main", lambda words: asked.append(words) or 0)
    assert script.main(["--dry-run"]) == 0
    assert asked[0][:2] == ["speed", "--floor"]
    assert asked[0].count("--case") == 4
    script.main(["--case", "qwen3-moe-4096"])
    assert asked[1].count("--case") == 1


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
