"""Prices of an accelerator-hour: as people write them, as events record them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from meshwright.errors import InputError
from meshwright.ledger import Rate, read_rate

from .conftest import DOLLAR_A_SECOND


@pytest.mark.parametrize("text", ["2.5USD/h", "$2.5/h", "2.5", "2.5 USD per hour", "2.5USD/GPU-hour", "2.5/gpu h"])
def test_prices_as_people_write_them(text: str) -> None:
    rate = read_rate(text)
    assert rate.usd_per_gpu_hour == Decimal("2.5") and rate.kind == "given" and text in rate.source


@pytest.mark.parametrize("text", ["free", "0", "-1USD/h", "2.5USD/day", "1e6USD/h", "2.5EUR/h", "/h"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rate(text)
    assert caught.value.where == "--price" and "2.5USD/h" in caught.value.fix


def test_a_recorded_price_comes_back_and_a_damaged_one_is_none() -> None:
    assert Rate.from_json(DOLLAR_A_SECOND.to_json()) == DOLLAR_A_SECOND
    for entry in (
        None,
        5,
        {},
        DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": "NaN"},
        DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": "x"},
    ):
        assert Rate.from_json(entry) is None
