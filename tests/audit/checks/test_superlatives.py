"""The largest and the fastest, against the table's own rows."""

from __future__ import annotations

import pytest
from statements import verdicts

from meshwright.audit.checks.superlatives import check
from meshwright.audit.rules import other_machines
from meshwright.audit.submissions import fastest, find, submissions

MOST = max(max(row.gpus for row in submissions()), max(one.gpus for one in other_machines()))
BEST = fastest(find(benchmark="llama31_8b"))
assert BEST is not None


@pytest.mark.parametrize("gpus, expected", [(MOST + 1, "consistent"), (MOST - 1, "impossible"), (8, "impossible")])
def test_the_largest_of_all(gpus: int, expected: str) -> None:
    assert verdicts(check, gpus=gpus, largest_of="all") == {"largest": expected}


def test_the_largest_of_one_kind() -> None:
    most = max(row.gpus for row in find(accelerator="h200"))
    assert verdicts(check, gpus=most, largest_of="h200") == {"largest": "consistent"}
    assert verdicts(check, gpus=most - 1, largest_of="h200") == {"largest": "impossible"}


def test_the_largest_of_an_unknown_size_or_kind_is_unknown() -> None:
    assert verdicts(check, largest_of="all") == {"largest": "unknown"}
    assert find(accelerator="rtx-4090") == []
    assert verdicts(check, gpus=1000, largest_of="rtx-4090") == {"largest": "unknown"}


@pytest.mark.parametrize("share, expected", [(1.0, "consistent"), (1.1, "impossible"), (0.97, "consistent"), (0.5, "unknown")])
def test_the_fastest_of_a_benchmark(share: float, expected: str) -> None:
    assert verdicts(check, benchmark="llama31_8b", record=True, minutes=share * BEST.minutes) == {"record": expected}


def test_a_log_stands_behind_a_time_that_the_table_does_not_have() -> None:
    facts = {"benchmark": "llama31_8b", "record": True, "minutes": 0.5 * BEST.minutes}
    assert verdicts(check, **facts, log="https://example.org/result_0.txt") == {"record": "consistent"}


def test_a_record_of_nothing_named_is_unknown() -> None:
    assert verdicts(check, record=True, minutes=10) == {"record": "unknown"}
    assert verdicts(check, record=True, benchmark="llama31_8b") == {"record": "unknown"}


def test_nothing_is_stated_about_no_superlative() -> None:
    assert verdicts(check, gpus=8, benchmark="llama31_8b", minutes=10) == {}
