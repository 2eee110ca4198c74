from __future__ import annotations

import pytest

from meshwright.audit.submissions import (
    best_rate,
    fastest,
    find,
    most_gain,
    most_share_of_peak,
    noise,
    submissions,
    typical_run_spread,
    unlike,
    up_to,
)
from meshwright.describe.load import names


def test_all_rows_are_there_and_their_accelerators_are_the_catalogues() -> None:
    assert len(submissions()) == 185
    assert all(row.accelerator in names("accelerators") for row in submissions() if row.vendor == "NVIDIA")


def test_a_submission_is_found_by_what_is_reported_of_it() -> None:
    found = find(round="v6.0", benchmark="llama31_405b", accelerator="gb200", gpus=8192)
    assert [row.submitter for row in found] == ["Azure"]
    assert find(submitter="azure", round="v6.0") == found
    assert find(round="v6.0", gpus=7168) == []
    assert find(submitter="CoreWeave", round="v5.0")[0].submitter == "IBM+CoreWeave+NVIDIA"


def test_the_record_of_a_benchmark_by_round() -> None:
    best = fastest(up_to("v3.1", find(benchmark="gpt3")))
    assert best is not None and (best.submitter, best.minutes) == ("Azure+NVIDIA", 4.0085)
    assert fastest(find(benchmark="deepseekv3_671b")) is None  # no times in the table


def test_nobody_passes_a_peak() -> None:
    share, whose = most_share_of_peak()
    assert share == pytest.approx(0.794, abs=1e-3) and "Google" in whose


def test_the_best_rate_of_an_accelerator() -> None:
    best = best_rate("h100")
    assert best is not None and best.flops_per_s == pytest.approx(915.7e12, rel=1e-3) and "512 h100" in best.where
    assert best_rate("a100-80gb") is None or best_rate("a100-80gb").flops_per_s < 312e12  # type: ignore[union-attr]


def test_what_software_gained_on_one_machine() -> None:
    gain, where = most_gain()
    assert gain == pytest.approx(64.2638 / 49.7951) and where == "NVIDIA, gpt3 on 512 h100, v3.0 to v4.1"
    assert most_gain("Intel")[0] == pytest.approx(311.9449 / 153.5813)
    assert most_gain("AMD")[0] >= gain


def test_noise_is_the_rows_own_or_the_tables_median() -> None:
    assert noise(find(round="v6.0", submitter="Azure")) == pytest.approx(0.02011)
    assert noise([]) == typical_run_spread()
    assert 0.001 < typical_run_spread() < 0.01


def test_a_claim_in_another_precision_than_the_record_is_remarked() -> None:
    row = find(round="v6.0", submitter="Azure")[0]
    assert row.precision == "fp4 (nvfp4)"
    assert unlike("bf16", row.precision) == "not like with like: on record is fp4 (nvfp4), the claim is in bf16"
    assert [unlike("nvfp4", row.precision), unlike("", row.precision), unlike("bf16", "")] == ["", "", ""]
    assert unlike("fp8", "fp4 (nvfp4) or fp8 (tensorwise)") == unlike("mxfp8", "fp8 (delayed)") == ""
