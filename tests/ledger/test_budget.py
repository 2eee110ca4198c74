"""Budgets: amounts as people write them, what is left of one, and by how much a run would pass it."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.ledger.budget import Budget, amount, evaluation_s, no_price, predicted_s, read_budget, recorded_budget
from meshwright.predict.outcome import Spread
from meshwright.record.run import read_run

from .conftest import DOLLAR_A_SECOND, new, racks, start


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
    assert caught.value.where == "budget" and "500USD" in caught.value.fix


def test_a_budget_says_by_how_much_it_would_be_passed() -> None:
    budget = Budget(usd=Decimal(500), rate=DOLLAR_A_SECOND, num_gpus=2, spent_usd=Decimal(100))
    assert budget.seconds_left == 200.0
    budget.check(Spread(200.0, 150.0, 400.0))
    with pytest.raises(InputError) as caught:
        budget.check(Spread(201.0, 150.0, 400.0))
    assert "predicted to cost 502.00 USD (80 % between 400.00 USD and 900.00 USD), 100.00 USD of it spent already" in caught.value.what
    assert caught.value.what.endswith("that is 2.00 USD over the budget of 500.00 USD")
    assert "budget='520USD'" in caught.value.fix
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


@given(st.decimals("0.01", 10**9, places=4), st.floats(0.1, 1e9), st.integers(1, 20000))
def test_what_an_error_proposes_is_read_and_is_enough(spent: Decimal, seconds: float, num_gpus: int) -> None:
    budget = Budget(usd=Decimal("0.01"), rate=DOLLAR_A_SECOND, num_gpus=num_gpus, spent_usd=spent)
    proposed = read_budget(f"{budget.enough_usd(seconds)}USD")
    cost = budget.cost_usd(seconds)
    assert cost < proposed <= cost * Decimal("1.21")  # a round number of two digits, one above or two
    replace(budget, usd=proposed).check(Spread(seconds, seconds, seconds))


def test_a_budget_that_is_reached_exactly_is_kept_and_a_free_machine_has_no_end() -> None:
    budget = Budget(usd=Decimal(80), rate=DOLLAR_A_SECOND, num_gpus=4)
    assert (budget.usd_per_s, budget.seconds_left, budget.cost_usd(20)) == (4, 20.0, 80)
    budget.check(Spread(20.0, 10.0, 500.0))
    free = replace(budget, rate=replace(DOLLAR_A_SECOND, usd_per_gpu_hour=Decimal(0)))
    assert free.seconds_left == math.inf
    free.check(Spread(1e9, 1e9, 1e9))
    assert replace(budget, spent_usd=Decimal(100)).seconds_left == -5.0


def test_amounts_as_people_read_them() -> None:
    shown = {"0": "0.00 USD", "1": "1.00 USD", "1234567.891": "1,234,567.89 USD", "0.00123456": "0.00123 USD", "-0.5": "-0.5 USD"}
    assert {usd: amount(Decimal(usd)) for usd in shown} == shown


def test_a_prediction_counts_the_steps_and_the_evaluations_that_are_left() -> None:
    plan = racks()
    each_s, evaluation, batch = evaluation_s(plan), plan.workload.evaluation, plan.workload.global_batch
    assert evaluation is not None and each_s > 0
    half = evaluation.first_step(batch)  # from here on the evaluations of a run are also those of its longer ones
    num_steps = half + 2 * evaluation.interval_steps(batch)
    whole = predicted_s(plan, num_steps)
    assert whole.value == pytest.approx(num_steps * plan.step_s + 3 * each_s)
    assert whole.low / whole.value == pytest.approx(plan.low_s / plan.step_s)
    assert whole.high / whole.value == pytest.approx(plan.high_s / plan.step_s)
    assert predicted_s(plan, half).value + predicted_s(plan, num_steps, half).value == pytest.approx(whole.value)
    assert predicted_s(plan, half, num_steps).value == 0 == predicted_s(plan, 0).value


def test_a_workload_without_evaluations_has_none_to_pay() -> None:
    plan = replace(racks(), workload=replace(racks().workload, evaluation=None))
    assert evaluation_s(plan) == 0.0
    assert predicted_s(plan, 10).value == pytest.approx(10 * plan.step_s)
    assert evaluation_s(replace(racks(), time_to_train_s=math.nan, ideal_time_to_train_s=math.nan)) == 0.0


def test_the_last_start_says_the_budget(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        assert recorded_budget(read_run(tmp_path / "a")) is None
        start(writer, budget_usd="500")
        assert recorded_budget(read_run(tmp_path / "a")) == 500
        start(writer, 9.0, "resumed", 1, budget_usd="750.50")
        writer.event("stopped", 1, 10.0, budget_usd="1")
        assert recorded_budget(read_run(tmp_path / "a")) == Decimal("750.50")
        start(writer, 20.0, "resumed", 1)
        assert recorded_budget(read_run(tmp_path / "a")) is None


def test_a_recorded_budget_that_cannot_be_read_is_an_error_with_its_file(tmp_path: Path) -> None:
    with new(tmp_path) as writer:
        start(writer, budget_usd="lots")
    with pytest.raises(InputError) as caught:
        recorded_budget(read_run(tmp_path / "a"))
    assert caught.value.where == f"budget_usd in {tmp_path / 'a' / 'events.jsonl'}" and "budget='none'" in caught.value.fix


def test_a_budget_without_a_price_names_the_accelerator() -> None:
    error = no_price(racks().cluster)
    assert error.what == "no price is listed for gb200, so a budget cannot be checked"
    assert error.where == "budget" and "price='2.5USD/h'" in error.fix
