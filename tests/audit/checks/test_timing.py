"""Steps times step time: 1,000 samples in batches of 10 are 100 steps, 200 s at 2 s each."""

from __future__ import annotations

import pytest
from statements import statements, verdicts

from meshwright.audit.checks.timing import check

FACTS = {"samples": 1000, "global_batch": 10, "step_s": 2.0}


@pytest.mark.parametrize(
    "seconds, expected",
    [(200, "consistent"), (250, "consistent"), (195, "consistent"), (150, "misleading"), (399, "consistent"), (500, "misleading")],
)
def test_steps_take_most_of_the_time_and_never_more(seconds: float, expected: str) -> None:
    assert verdicts(check, **FACTS, seconds=seconds) == {"time by its own numbers": expected}


def test_the_reason_names_both_times() -> None:
    why = statements(check, **FACTS, seconds=150)["time by its own numbers"].why
    assert "200 s" in why and "150 s" in why


@pytest.mark.parametrize("missing", ["samples", "global_batch", "step_s", "seconds"])
def test_nothing_is_stated_where_one_of_the_four_is_missing(missing: str) -> None:
    facts = {**FACTS, "seconds": 150}
    del facts[missing]
    assert verdicts(check, **facts) == {}
