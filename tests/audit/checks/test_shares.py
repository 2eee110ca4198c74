"""A part of a total in per cent."""

from __future__ import annotations

from typing import Any

import pytest
from statements import verdicts

from meshwright.audit.checks.shares import check


@pytest.mark.parametrize(
    "facts, expected",
    [
        ({"part": 25, "total": 100, "share_pct": 25}, "consistent"),
        ({"part": 148, "total": 419, "share_pct": 35.3}, "consistent"),  # 35.32 %, as written with one digit
        ({"part": 148, "total": 419, "share_pct": 35.4}, "misleading"),
        ({"part": 0, "total": 100, "share_pct": 0}, "consistent"),
        ({"part": 25, "total": 100, "share_pct": 0}, "misleading"),
        ({"part": 120, "total": 100, "share_pct": 120}, "impossible"),
        ({"part": 120, "total": 100}, "impossible"),
        ({"share_pct": 30}, "unsupported"),
        ({"part": 3, "share_pct": 30}, "unsupported"),
    ],
)
def test_a_share_is_its_part_over_its_total(facts: dict[str, Any], expected: str) -> None:
    assert verdicts(check, **facts) == {"share": expected}


def test_nothing_is_stated_about_a_part_alone() -> None:
    assert verdicts(check, part=3, total=10) == {}
