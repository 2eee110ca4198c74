"""A memo is made of plain values that cannot change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from meshwright.say.memo import FAIL, OPEN, PASS, Memo, Part


def test_a_memo_needs_no_more_than_a_verdict_and_cannot_be_changed() -> None:
    memo = Memo(kind="a claim", title="fast", outcome=OPEN, verdict="unknown", headline="Nobody can tell.")
    assert memo.second == "" and len({PASS, OPEN, FAIL}) == 3
    with pytest.raises(FrozenInstanceError):
        memo.title = "slow"  # type: ignore[misc]
    assert replace(memo, outcome=FAIL) != memo


def test_a_part_may_be_empty() -> None:
    assert Part(title="Sources").lines == () and Part(title="Sources").tables == ()
