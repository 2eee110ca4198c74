"""How much step times vary, against the table's own spreads."""

from __future__ import annotations

from typing import Any

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.variation import check
from meshwright.audit.submissions import Submission, find, submissions


def is_alone(row: Submission) -> bool:
    same = find(round=row.round, submitter=row.submitter, benchmark=row.benchmark, accelerator=row.accelerator, gpus=row.gpus)
    return len(same) == 1 and row.robust_std_pct > 0 and row.run_spread_pct > 0 and row.chip is not None


ROW = next(row for row in submissions() if is_alone(row))
MACHINE = {
    "round": ROW.round,
    "submitter": ROW.submitter,
    "benchmark": ROW.benchmark,
    "accelerator": ROW.accelerator,
    "gpus": ROW.gpus,
}


@pytest.mark.parametrize(
    "times, expected", [(1.0, "consistent"), (1.9, "consistent"), (0.6, "consistent"), (5.0, "misleading"), (0.2, "misleading")]
)
@pytest.mark.parametrize("of, value", [("within-run", ROW.robust_std_pct), ("between-runs", ROW.run_spread_pct)])
def test_a_spread_within_twice_the_logs_passes(of: str, value: float, times: float, expected: str) -> None:
    assert verdicts(check, **MACHINE, variation_of=of, variation_pct=times * value) == {"variation": expected}


def test_a_range_passes_where_the_logs_lie_in_it() -> None:
    around = [ROW.robust_std_pct / 3, ROW.robust_std_pct * 3]
    assert verdicts(check, **MACHINE, variation_of="within-run", variation_pct=around) == {"variation": "consistent"}


def test_the_reason_says_in_which_direction_it_is_off() -> None:
    facts: dict[str, Any] = {**MACHINE, "variation_of": "within-run"}
    assert "less" in statements(check, **facts, variation_pct=5 * ROW.robust_std_pct)["variation"].why
    assert "more" in statements(check, **facts, variation_pct=0.2 * ROW.robust_std_pct)["variation"].why


def test_a_variation_of_nothing_named_is_unsupported() -> None:
    assert verdicts(check, **MACHINE, variation_pct=1.0) == {"variation": "unsupported"}


def test_a_run_that_is_not_on_record_needs_a_log() -> None:
    unknown = {"benchmark": "gpt3", "accelerator": "h100", "gpus": 7, "variation_of": "within-run", "variation_pct": 1.0}
    assert verdicts(check, **unknown) == {"variation": "unsupported"}
    assert verdicts(check, **unknown, log="https://example.org/result_0.txt") == {"variation": "consistent"}


def test_nothing_is_stated_about_no_variation() -> None:
    assert verdicts(check, **MACHINE) == {}
