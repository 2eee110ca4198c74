"""Budgets: amounts as people write them, what is left of one, and by how much a run would pass it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from meshwright.errors import InputError
from meshwright.ledger import Budget, predicted_s, read_budget
from meshwright.predict.outcome import Spread

from .conftest import DOLLAR_A_SECOND, racks


@pytest.mark.parametrize(
    "text, usd",
    [("500USD", 500), ("500", 500), ("$500", 500), ("500 USD", 500), (" 500usd ", 500), ("USD 500", 500), ("1.2kUSD", 1200),
     ("3MUSD", 3_000_000), ("1e6", 1_000_000), ("1,200.50 USD", Decimal("1200.50")), ("0.05", Decimal("0.05")), ("500$", 500),
     ("1_000", 1000), ("US$500", 500)],
)  # fmt: skip
def test_amounts_as_people_write_them(text: str, usd: int | Decimal) -> None:
    assert read_budget(text) == usd


@pytest.mark.parametrize(
    "text",
    [
        "",
        "much",
        "-5",
        "0",
        "0USD",
        "500EUR",
        "€500",
        "5 00",
        "1,2",
        "1,2345",
        "nan",
        "inf",
        "1e99",
        "1e999999999",
        "1e-999999999",
        "5mUSD",
        "500USD/h",
        "$",
        "1..2",
        "\u0665",
    ],
)
def test_what_is_no_amount_is_refused_and_the_understood_is_reported(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_budget(text)
    assert caught.value.where == "--budget" and "500USD" in caught.value.fix


def test_a_budget_says_by_how_much_it_would_be_passed() -> None:
    budget = Budget(usd=Decimal(500), rate=DOLLAR_A_SECOND, num_gpus=2, spent_usd=Decimal(100))
    assert budget.seconds_left == 200.0
    budget.check(Spread(200.0, 150.0, 400.0))
    with pytest.raises(InputError) as caught:
        budget.check(Spread(201.0, 150.0, 400.0))
    assert "predicted to cost 502.00 USD (80 % between 400.00 USD and 900.00 USD), 100.00 USD of it spent already" in caught.value.what
    assert caught.value.what.endswith("that is 2.00 USD over the budget of 500.00 USD")
    assert "--budget 520USD" in caught.value.fix
    for seconds, message in {
        Spread(
            201.0, 201.0, 400.0
        ): "(80 % between 502.00 USD and 900.00 USD, none of it below: comparable runs took longer than predicted)",
        Spread(201.0, 150.0, 201.0): "(80 % between 400.00 USD and 502.00 USD, none of it above: comparable runs took less)",
        Spread(201.0, 201.0, 201.0): "predicted to cost 502.00 USD, 100.00 USD of it spent",
    }.items():
        with pytest.raises(InputError) as caught:
            budget.check(seconds)
        assert message in caught.value.what
    assert predicted_s(racks(), racks().workload.num_steps()).value == pytest.approx(racks().time_to_train_s)
