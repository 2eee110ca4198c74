"""What one check says of a made-up claim, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from meshwright.audit.claim import Claim, claim_of
from meshwright.audit.verdict import Statement

Check = Callable[[Claim], Iterable[Statement]]


def statements(check: Check, folder: Path | None = None, **facts: Any) -> dict[str, Statement]:
    """What the check says of these facts, by what each statement is about; every statement has a reason and its arithmetic."""
    found = list(check(claim_of(facts, "a claim", folder)))
    assert all(one.why and one.arithmetic for one in found)
    by_subject = {one.about: one for one in found}
    assert len(by_subject) == len(found), "two statements about one thing"
    return by_subject


def verdicts(check: Check, folder: Path | None = None, **facts: Any) -> dict[str, str]:
    """The verdicts alone."""
    return {about: one.verdict for about, one in statements(check, folder, **facts).items()}
