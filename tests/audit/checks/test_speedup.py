"""Speed-ups: 100 s against 200 s is 2 times, whichever way somebody puts it."""

from __future__ import annotations

from typing import Any

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.speedup import check
from meshwright.audit.submissions import before, fastest, find

TIMES = {"seconds": 100, "baseline": {"seconds": 200}}
RECORD = fastest(before("v5.1", find(benchmark="llama31_405b")))
assert RECORD is not None


@pytest.mark.parametrize("claimed, expected", [(2.0, "consistent"), (3.0, "misleading"), (1.5, "misleading"), (0.5, "misleading")])
def test_the_two_times_decide(claimed: float, expected: str) -> None:
    assert verdicts(check, speedup=claimed, **TIMES) == {"speed-up": expected}


def test_a_ratio_that_is_upside_down_is_called_so() -> None:
    assert "upside down" in statements(check, speedup=0.5, **TIMES)["speed-up"].why


@pytest.mark.parametrize("faster_pct, expected", [(100, "consistent"), (50, "consistent"), (75, "misleading")])
def test_per_cent_faster_may_mean_per_cent_less_time(faster_pct: float, expected: str) -> None:
    """Twice as fast is 100 % faster, and takes 50 % less time."""
    assert verdicts(check, faster_pct=faster_pct, **TIMES) == {"speed-up": expected}


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({}, "unsupported"),  # faster than what?
        ({"baseline": {"gpus": 8}}, "unsupported"),  # no times
        ({"baseline": {"record": True}}, "unknown"),  # of what?
        ({"model": "llama-3.1-8b", "seconds": 100, "baseline": {"model": "llama-3.1-70b", "seconds": 200}}, "misleading"),
        ({"parameters": 1e9, "seconds": 100, "baseline": {"parameters": 2e9, "seconds": 200}}, "misleading"),
    ],
)
def test_a_speedup_needs_a_baseline_that_did_the_same(facts: dict[str, Any], expected: str) -> None:
    assert verdicts(check, speedup=2.0, **facts) == {"speed-up": expected}


def test_a_speedup_below_the_noise_is_misleading() -> None:
    near = {"seconds": 1000, "baseline": {"seconds": 1001}}
    found = statements(check, speedup=1.001, **near)["speed-up"]
    assert found.verdict == "misleading" and "less than runs of one machine differ by" in found.why


@pytest.mark.parametrize("samples, expected", [((100, 100), "consistent"), ((50, 100), "misleading")])
def test_half_the_samples_in_half_the_time_is_no_faster_machine(samples: tuple[int, int], expected: str) -> None:
    facts = {"seconds": 100, "samples": samples[0], "baseline": {"seconds": 200, "samples": samples[1]}}
    found = verdicts(check, speedup=2.0, **facts)
    assert found == {"speed-up": "consistent", "throughput or convergence": expected}


def test_more_machines_of_another_kind_are_not_faster_machines() -> None:
    facts = {"seconds": 100, "gpus": 32, "accelerator": "h200", "baseline": {"seconds": 200, "gpus": 8, "accelerator": "h100"}}
    assert verdicts(check, speedup=2.0, **facts)["speed-up of each GPU"] == "misleading"
    facts["gpus"] = 12
    assert verdicts(check, speedup=2.0, **facts)["speed-up of each GPU"] == "consistent"


@pytest.mark.parametrize("batches, expected", [((64, 64), None), ((32, 64), "misleading"), ((128, 64), "consistent")])
def test_a_shorter_step_of_fewer_sequences_is_no_faster(batches: tuple[int, int], expected: str | None) -> None:
    facts = {"step_s": 1.0, "global_batch": batches[0], "baseline": {"step_s": 2.0, "global_batch": batches[1]}, "speedup_of": "step"}
    assert verdicts(check, speedup=2.0, **facts).get("work of a step") == expected


@pytest.mark.parametrize(
    "minutes, claimed, expected",
    [
        (RECORD.minutes / 2, 2.0, "consistent"),
        (RECORD.minutes / 2, 1.5, "consistent"),  # more than claimed
        (RECORD.minutes / 2, 4.0, "misleading"),
        (RECORD.minutes * 2, 2.0, "impossible"),  # slower than the record stood
    ],
)
def test_over_the_record_before_its_round(minutes: float, claimed: float, expected: str) -> None:
    facts = {"benchmark": "llama31_405b", "round": "v5.1", "minutes": minutes, "baseline": {"record": True}}
    assert verdicts(check, speedup=claimed, **facts) == {"speed-up": expected}


def test_before_the_first_round_there_is_no_record() -> None:
    facts = {"benchmark": "llama31_405b", "round": "v3.0", "minutes": 10, "baseline": {"record": True}}
    assert verdicts(check, speedup=2.0, **facts) == {"speed-up": "unknown"}


def test_nothing_is_stated_about_no_speedup() -> None:
    assert verdicts(check, **TIMES) == {}
