from __future__ import annotations

from pathlib import Path

import pytest
from made_logs import submission

from meshwright.audit.compare import compare, comparisons
from meshwright.audit.score import read_submissions

SHARED = Path(__file__).parents[2] / ".." / "shared" / "logs"


def test_time_is_throughput_times_convergence(tmp_path: Path) -> None:
    submission(tmp_path / "a", (2.0, 2.0, 2.0))
    submission(tmp_path / "b", (1.0, 1.0, 1.0), num_steps=16)
    base, other = read_submissions([tmp_path / "a", tmp_path / "b"], with_compliance=False)
    found = compare(other, base)
    assert found is not None
    # both 16 s of steps and 6 s of evaluations; twice the samples in b
    assert (found.time, found.throughput, found.convergence, found.loop, found.noise) == (1.0, 2.0, 0.5, 2.0, 0.0)
    assert found.sentence == "1.000 times as fast = 2.000 throughput x 0.500 convergence; in the loop itself 2.000 times"


def test_a_difference_below_the_noise_says_so(tmp_path: Path) -> None:
    submission(tmp_path / "a", (2.0, 2.1, 2.0))
    submission(tmp_path / "b", (2.04, 2.04, 2.04))
    found = read_submissions([tmp_path / "a", tmp_path / "b"], with_compliance=False)
    [(_, one)] = comparisons(found)
    assert one.sentence.endswith("the difference in the loop is below the noise between runs (5.0 %)")


def test_two_benchmarks_do_not_compare(tmp_path: Path) -> None:
    submission(tmp_path / "a")
    submission(tmp_path / "b", benchmark="gpt3")
    assert comparisons(read_submissions([tmp_path / "a", tmp_path / "b"], with_compliance=False)) == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real logs are not here")
def test_h200_against_h100_is_mostly_convergence() -> None:
    folders = [SHARED / "v4.1_oracle_h100_512_llama2_70b_lora", SHARED / "v4.1_azure_h200_512_llama2_70b_lora"]
    [(_, found)] = comparisons(read_submissions(folders, with_compliance=False))
    assert (found.time, found.throughput, found.convergence, found.loop) == pytest.approx((1.284, 1.064, 1.206, 0.979), abs=1e-3)


def test_a_comparison_says_that_its_times_carry_no_factor(tmp_path: Path) -> None:
    one, two = submission(tmp_path / "one"), submission(tmp_path / "two", (1.0, 1.1, 1.05))
    (two / "scaling.json").write_text('{"scaling_factor": 1.5}')
    first, second = read_submissions([one, two], with_compliance=False)
    found = compare(second, first)
    assert found is not None and "without MLPerf's factor on the score" in found.sentence
    plain = compare(first, first)
    assert plain is not None and "factor" not in plain.sentence
