"""Scaling efficiency: from 100 GPUs at 1 s a step to 200 at 1.25 s, with the same work for each, is 80 %."""

from __future__ import annotations

from typing import Any

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.efficiency import check

TIMES = {"gpus": 200, "step_s": 1.25, "baseline": {"gpus": 100, "step_s": 1.0}}


@pytest.mark.parametrize("claimed, expected", [(80, "consistent"), (90, "misleading"), (70, "misleading"), (125, "misleading")])
def test_the_two_times_decide(claimed: float, expected: str) -> None:
    assert verdicts(check, efficiency_pct=claimed, **TIMES)["efficiency"] == expected


def test_a_ratio_that_is_upside_down_is_called_so() -> None:
    assert "upside down" in statements(check, efficiency_pct=125, **TIMES)["efficiency"].why


def test_the_smaller_machine_is_the_base_whichever_is_named_first() -> None:
    turned = {"gpus": 100, "step_s": 1.0, "baseline": {"gpus": 200, "step_s": 1.25}}
    assert verdicts(check, efficiency_pct=80, **turned)["efficiency"] == "consistent"


def test_strong_scaling_halves_the_work_of_each() -> None:
    """Twice the GPUs in 0.625 of the time: 80 % of the ideal half."""
    times = {"gpus": 200, "step_s": 0.625, "baseline": {"gpus": 100, "step_s": 1.0}, "scaling": "strong"}
    assert verdicts(check, efficiency_pct=80, **times)["efficiency"] == "consistent"
    assert verdicts(check, efficiency_pct=80, **{**times, "scaling": "weak"})["efficiency"] == "misleading"


@pytest.mark.parametrize(
    "batches, scaling, expected",
    [((2000, 1000), "weak", "consistent"), ((2000, 1000), "strong", "misleading"), ((1000, 1000), "strong", "consistent")],
)
def test_the_batches_must_be_those_of_the_kind_of_scaling(batches: tuple[int, int], scaling: str, expected: str) -> None:
    facts: dict[str, Any] = {**TIMES, "global_batch": batches[0], "scaling": scaling}
    facts["baseline"] = {**facts["baseline"], "global_batch": batches[1]}
    assert verdicts(check, efficiency_pct=80, **facts)["kind of scaling"] == expected


def test_more_than_all_of_the_work_is_implausible() -> None:
    superb = {"gpus": 200, "step_s": 0.8, "baseline": {"gpus": 100, "step_s": 1.0}}
    assert verdicts(check, efficiency_pct=125, **superb)["efficiency"] == "implausible"
    assert verdicts(check, efficiency_pct=150) == {"efficiency": "implausible"}


def test_without_two_times_it_is_unsupported() -> None:
    assert verdicts(check, efficiency_pct=90) == {"efficiency": "unsupported"}
    assert verdicts(check, efficiency_pct=90, step_s=1.0, baseline={"gpus": 100}) == {"efficiency": "unsupported"}
    strong = {"step_s": 1.25, "baseline": {"step_s": 1.0}, "scaling": "strong"}
    assert verdicts(check, efficiency_pct=80, **strong) == {"efficiency": "unsupported"}  # of how many GPUs?


def test_a_difference_within_the_noise_is_reported_and_held_against_nobody() -> None:
    near = {"gpus": 200, "step_s": 1.0001, "baseline": {"gpus": 100, "step_s": 1.0}}
    found = statements(check, efficiency_pct=100, **near)["difference against noise"]
    assert found.verdict == "consistent" and "no difference is shown" in found.why


def test_nothing_is_stated_about_no_efficiency() -> None:
    assert verdicts(check, **TIMES) == {}
