"""Verdicts, from the best to the worst, and what a statement must have."""

from __future__ import annotations

import pytest

from meshwright.audit.verdict import (
    CONSISTENT,
    IMPLAUSIBLE,
    IMPOSSIBLE,
    MEANING,
    MISLEADING,
    UNKNOWN,
    UNSUPPORTED,
    VERDICTS,
    Statement,
    severity,
)
from meshwright.errors import InputError


def test_verdicts_are_ordered_from_the_best_to_the_worst() -> None:
    assert VERDICTS == (CONSISTENT, UNKNOWN, UNSUPPORTED, MISLEADING, IMPLAUSIBLE, IMPOSSIBLE)
    assert [severity(verdict) for verdict in VERDICTS] == [0, 1, 2, 3, 4, 5]
    assert max([MISLEADING, CONSISTENT, IMPLAUSIBLE], key=severity) == IMPLAUSIBLE


def test_each_verdict_has_a_meaning_of_its_own() -> None:
    assert len(set(MEANING.values())) == len(VERDICTS) and all(MEANING.values())


@pytest.mark.parametrize(("name", "near"), [("imposible", "did you mean impossible"), ("fine", "use one of"), ("", "use one of")])
def test_an_unknown_verdict_is_refused_with_those_that_there_are(name: str, near: str) -> None:
    with pytest.raises(InputError, match=f"no verdict named '{name}'") as caught:
        severity(name)
    assert near in caught.value.fix and caught.value.fix.endswith(f"(from the best: {', '.join(VERDICTS)})")


def test_a_statement_holds_a_verdict_that_exists() -> None:
    made = Statement(about="share", verdict=MISLEADING, why="148 of 419 is 35.3 %", arithmetic=("148 / 419 = 35.32 %",))
    assert severity(made.verdict) == 3
    with pytest.raises(AssertionError):
        Statement(about="share", verdict="wrong", why="", arithmetic=())
