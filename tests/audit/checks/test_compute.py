"""FLOPs against the peak: 989 TFLOP/s of an H100 in bf16. A job of 1e9 parameters and 1e12 tokens is 6e21 FLOP."""

from __future__ import annotations

from typing import Any

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.compute import check
from meshwright.audit.submissions import find, most_gain

JOB = {"parameters": 1e9, "tokens": 1e12, "accelerator": "h100", "precision": "bf16", "gpus": 100}
PEAK_S = 6e21 / (100 * 989e12)  # what the job takes on 100 H100 at their peak: 16.85 hours


@pytest.mark.parametrize(
    "share, expected",
    [(1.2, "impossible"), (1.001, "impossible"), (0.9, "implausible"), (0.4, "consistent"), (0.05, "consistent")],
)
def test_the_share_of_the_peak_decides(share: float, expected: str) -> None:
    found = statements(check, **JOB, seconds=PEAK_S / share)["compute"]
    assert found.verdict == expected
    assert any(f"{100 * share:.1f}".rstrip("0").rstrip(".") in line for line in found.arithmetic)


def test_without_an_accelerator_only_the_fastest_of_all_decides() -> None:
    unnamed = {key: value for key, value in JOB.items() if key not in ("accelerator", "precision")}
    assert verdicts(check, **unnamed, seconds=PEAK_S / 0.4) == {"compute": "unknown"}
    assert verdicts(check, **unnamed, seconds=PEAK_S / 1000) == {"compute": "impossible"}


def test_work_that_is_not_given_is_unknown() -> None:
    assert verdicts(check, parameters=1e9, accelerator="h100", gpus=100, hours=42) == {"compute": "unknown"}


def test_a_precision_that_the_chip_lacks_is_impossible() -> None:
    assert verdicts(check, **{**JOB, "precision": "nvfp4"}, seconds=PEAK_S / 0.4)["compute"] == "impossible"


def test_a_baseline_is_judged_too() -> None:
    found = verdicts(check, **JOB, seconds=PEAK_S / 0.4, baseline={"gpus": 100, "tokens": 1e12, "seconds": PEAK_S / 2})
    assert found == {"compute": "consistent", "compute of the baseline": "impossible"}


def test_a_step_is_judged_by_its_batch() -> None:
    step_s = 6e9 * 1024 * 4096 / (100 * 989e12)  # at the peak
    job = {**JOB, "seq_len": 4096, "global_batch": 1024, "tokens": None}
    facts = {key: value for key, value in job.items() if value is not None}
    assert verdicts(check, **facts, step_s=step_s / 0.4) == {"compute, in a step": "consistent"}
    assert verdicts(check, **facts, step_s=step_s / 1.5) == {"compute, in a step": "impossible"}


@pytest.mark.parametrize(
    "claimed, expected",
    [
        ({"mfu_pct": 40}, {"MFU": "consistent"}),
        ({"mfu_pct": 95}, {"MFU": "implausible"}),
        ({"mfu_pct": 120}, {"MFU": "impossible"}),
        ({"tflops_per_gpu": 400}, {"TFLOP/s": "consistent"}),
        ({"tflops_per_gpu": 1000}, {"TFLOP/s": "impossible"}),
        ({"tokens_per_s_per_gpu": 66_000, "parameters": 1e9}, {"throughput": "consistent"}),  # 396 TFLOP/s
        ({"tokens_per_s_per_gpu": 200_000, "parameters": 1e9}, {"throughput": "impossible"}),  # 1,200 TFLOP/s
        ({"tokens_per_s": 200_000, "parameters": 1e9, "gpus": 3}, {"throughput": "consistent"}),
        ({"tokens_per_s": 200_000}, {"throughput": "unknown"}),  # of what model?
    ],
)
def test_claimed_rates(claimed: dict[str, Any], expected: dict[str, str]) -> None:
    assert verdicts(check, accelerator="h100", precision="bf16", **claimed) == expected


def test_a_share_of_no_peak_is_unknown() -> None:
    assert verdicts(check, mfu_pct=40) == {"MFU": "unknown"}


@pytest.mark.parametrize("mfu_pct, expected", [(40, "consistent"), (45, "consistent"), (60, "misleading"), (30, "misleading")])
def test_an_mfu_must_follow_from_the_claims_own_work_and_time(mfu_pct: float, expected: str) -> None:
    """A rate of the steps may be up to 1.25 times that of the run, which evaluates too; it cannot be lower."""
    found = verdicts(check, **JOB, seconds=PEAK_S / 0.4, mfu_pct=mfu_pct)
    assert found["MFU by its own numbers"] == expected


@pytest.mark.parametrize("share, expected", [(0.95, "consistent"), (1.1, "implausible")])
def test_software_alone_gains_no_more_than_it_ever_did(share: float, expected: str) -> None:
    best = min((row for row in find(benchmark="llama31_8b", accelerator="b200", gpus=8) if row.minutes > 0), key=lambda row: row.minutes)
    gain, _ = most_gain("NVIDIA")
    facts = {"benchmark": "llama31_8b", "accelerator": "b200", "gpus": 8, "minutes": best.minutes / (share * gain)}
    found = statements(check, **facts)["compute"]
    assert found.verdict == expected
    assert ("software alone" in found.why) == (expected == "implausible")
