"""Dollars for a GPU-hour against the price list, and a bill against its own hours."""

from __future__ import annotations

import pytest
from statements import verdicts

from meshwright.audit.checks.money import check
from meshwright.describe.economics import prices

LOW, HIGH = (prices("h100")[place].usd_per_accelerator_hour for place in (0, -1))


@pytest.mark.parametrize(
    "price, expected",
    [
        ((LOW + HIGH) / 2, "consistent"),
        (1.4 * HIGH, "consistent"),  # contracts differ from lists
        (2 * HIGH, "implausible"),
        (11 * HIGH, "impossible"),
        (LOW / 1.4, "consistent"),
        (LOW / 2, "implausible"),
        (LOW / 11, "impossible"),
    ],
)
def test_a_price_is_compared_with_the_list(price: float, expected: str) -> None:
    assert verdicts(check, accelerator="h100", usd_per_gpu_hour=price) == {"price": expected}
    assert verdicts(check, accelerator="h100", gpus=10, hours=10, cost_usd=100 * price) == {"price": expected}


def test_a_chip_without_a_price_is_unknown() -> None:
    assert prices("l40s") == ()
    assert verdicts(check, accelerator="l40s", usd_per_gpu_hour=2.0) == {"price": "unknown"}


def test_a_cost_without_a_machine_is_unknown() -> None:
    assert verdicts(check, cost_usd=1e6) == {"price": "unknown"}
    assert verdicts(check, usd_per_gpu_hour=2.0) == {"price": "unknown"}


@pytest.mark.parametrize("cost_usd, expected", [(300, "consistent"), (305, "consistent"), (400, "misleading"), (200, "misleading")])
def test_hours_times_price_must_give_the_cost(cost_usd: float, expected: str) -> None:
    found = verdicts(check, accelerator="h100", gpus=10, hours=10, usd_per_gpu_hour=3.0, cost_usd=cost_usd)
    assert found["cost by its own numbers"] == expected


def test_nothing_is_stated_about_no_money() -> None:
    assert verdicts(check, accelerator="h100", gpus=10, hours=10) == {}
