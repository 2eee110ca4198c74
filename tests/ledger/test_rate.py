"""Prices of an accelerator-hour: as people write them, as events record them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from decimal import Decimal

import pytest

from meshwright.errors import InputError
from meshwright.ledger.rate import Rate, rate_of, read_rate, read_usd
from meshwright.predict.outcome import price_of

from .conftest import DOLLAR_A_SECOND, racks


@pytest.mark.parametrize("text", ["2.5USD/h", "$2.5/h", "2.5", "2.5 USD per hour", "2.5USD/GPU-hour", "2.5/gpu h"])
def test_prices_as_people_write_them(text: str) -> None:
    rate = read_rate(text)
    assert rate.usd_per_gpu_hour == Decimal("2.5") and rate.kind == "given" and text in rate.source


@pytest.mark.parametrize("text", ["free", "0", "-1USD/h", "2.5USD/day", "1e6USD/h", "2.5EUR/h", "/h"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_rate(text)
    assert caught.value.where == "price" and "2.5USD/h" in caught.value.fix


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


@pytest.mark.parametrize("usd", ["1e15", "1e999999", "1e99999999", "1e-99999999", "0e99999999", "-1", "Infinity", "sNaN"])
def test_a_recorded_price_beyond_all_money_is_none(usd: str) -> None:
    assert Rate.from_json(DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": usd}) is None


@pytest.mark.parametrize("missing", ["usd_per_gpu_hour", "provider", "kind", "date", "source"])
def test_a_recorded_price_that_lacks_a_field_is_none(missing: str) -> None:
    assert Rate.from_json({name: value for name, value in DOLLAR_A_SECOND.to_json().items() if name != missing}) is None


def test_no_digit_of_a_price_is_lost_in_an_event_and_a_price_of_nothing_is_one() -> None:
    exact = replace(DOLLAR_A_SECOND, usd_per_gpu_hour=Decimal("2.123456789012345678901"))
    assert Rate.from_json(json.loads(json.dumps(exact.to_json()))) == exact
    free = Rate.from_json(DOLLAR_A_SECOND.to_json() | {"usd_per_gpu_hour": 0})
    assert free is not None and free.usd_per_gpu_hour == 0


def test_a_rate_is_shown_without_exponents_or_idle_zeros() -> None:
    shown = {"2.50": "$2.5", "1E+3": "$1000", "0.0300": "$0.03", "0": "$0"}
    for usd, text in shown.items():
        assert str(replace(DOLLAR_A_SECOND, usd_per_gpu_hour=Decimal(usd))) == f"{text} per accelerator-hour, us, given, 2026-11-15"


def test_a_machine_has_the_price_that_the_predictor_uses_and_one_without_has_none() -> None:
    cluster = racks().cluster
    listed, used = rate_of(cluster), price_of(cluster)
    assert listed is not None and used is not None
    assert float(listed.usd_per_gpu_hour) == used.usd_per_accelerator_hour
    assert (listed.provider, listed.kind, listed.date, listed.source) == (used.provider, used.kind, used.date, used.source.text)
    assert rate_of(replace(cluster, accelerator=replace(cluster.accelerator, name="secret"))) is None


@pytest.mark.parametrize(
    "text, what",
    [
        ("", "no amount of USD"),
        ("  ", "no amount of USD"),
        ("1,2", "the comma in '1,2' could be a decimal point or a separator"),
        ("0", "0 is not above 0"),
        ("1e-31", "1e-31 is too small an amount"),
        ("1e31", "1e31 is too large an amount"),
        ("1e15", "1e15 is too large an amount"),
        ("1000000000MUSD", "1000000000MUSD is too large an amount"),
        ("<b>5</b>", "cannot read an amount of USD in '<b>5</b>'"),
    ],
)
def test_an_amount_that_is_none_is_named_with_its_place(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        read_usd(text, "here", "write 5")
    assert (caught.value.what, caught.value.where, caught.value.fix) == (what, "here", "write 5")


def test_the_largest_and_the_smallest_amounts_that_are_read() -> None:
    assert read_usd("999999999.999999MUSD", "", "") == Decimal("999999999999999")
    assert read_usd("1e-30", "", "") == Decimal("1e-30")
    assert read_usd(".5", "", "") == Decimal("0.5") and read_usd("5.", "", "") == 5


def test_a_price_is_of_today_and_beyond_a_limit_a_slip_of_the_keyboard() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", read_rate("2.5").date)
    assert read_rate("100kUSD/h").usd_per_gpu_hour == read_rate("100KUSD/h").usd_per_gpu_hour == 100_000
    with pytest.raises(InputError, match=r"\$100000.01 per accelerator-hour"):
        read_rate("100000.01USD/h")
