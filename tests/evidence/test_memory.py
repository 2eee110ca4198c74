"""The cut-down models on eight B200: peak memory within 1.5 % on the mean, and far better in fact."""

from __future__ import annotations

import pytest

from meshwright.evidence.memory import memory_evidence
from meshwright.units import GIB


@pytest.fixture(scope="module")
def evidence():
    return memory_evidence()


def test_all_runs_are_predicted_within_the_promise(evidence):
    assert len(evidence.rows) == 43
    assert evidence.mean_abs_error_pct <= 0.2
    assert abs(evidence.worst_pct) <= 0.7
    assert abs(evidence.bias_pct) <= 0.2


def test_dense_models_are_within_a_seventh_of_a_percent(evidence):
    assert all(abs(row.error_pct) < 0.15 for row in evidence.rows if row.name.startswith("llama"))


def test_a_row_says_where_the_peak_is(evidence):
    row = next(row for row in evidence.rows if row.name == "llama3_70b_l12_tp1_pp2_dp4_mbc4_cef")
    assert (row.stage, row.moment) == (0, "first backward, warm-up over")
    assert row.measured_bytes == pytest.approx(66.55 * GIB)
