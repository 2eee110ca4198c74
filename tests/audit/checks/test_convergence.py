"""Samples to the target against MLPerf's reference, whose points are in rules.toml."""

from __future__ import annotations

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.convergence import check
from meshwright.audit.rules import benchmarks

BATCH, REFERENCE = next(iter(benchmarks()["llama31_8b"].reference.items()))


@pytest.mark.parametrize("share, expected", [(1.0, "consistent"), (1.5, "consistent"), (0.81, "consistent"), (0.79, "implausible")])
def test_far_fewer_samples_than_the_reference_are_implausible(share: float, expected: str) -> None:
    found = verdicts(check, benchmark="llama31_8b", global_batch=BATCH, samples=share * REFERENCE)
    assert found == {"samples to the target": expected}


def test_a_larger_batch_may_need_more() -> None:
    """What is plausible at a small batch is not at a large one, whose reference needs twice the samples."""
    large = max(benchmarks()["llama31_8b"].reference)
    assert verdicts(check, benchmark="llama31_8b", global_batch=large, samples=REFERENCE) == {"samples to the target": "implausible"}


def test_without_a_batch_the_best_one_counts() -> None:
    fewest = min(benchmarks()["llama31_8b"].reference.values())
    found = statements(check, benchmark="llama31_8b", samples=fewest)["samples to the target"]
    assert found.verdict == "consistent" and "none is claimed" in found.arithmetic[0]


def test_sooner_than_the_reference_says_what_mlperf_does_about_it() -> None:
    why = statements(check, benchmark="llama31_8b", global_batch=BATCH, samples=0.9 * REFERENCE)["samples to the target"].why
    assert "multiplies the score" in why and "1.11" in why


def test_nothing_is_stated_without_samples_or_without_a_target() -> None:
    assert verdicts(check, benchmark="llama31_8b", global_batch=BATCH) == {}
    assert verdicts(check, model="llama-3.1-8b", samples=1000) == {}
