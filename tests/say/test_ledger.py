"""What a ledger says: hours, dollars and energy by state, and what is unknown."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from meshwright.ledger import Ledger, Rate, ledger_of_run
from meshwright.record.entries import Event, StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import Run
from meshwright.say.ledger import ledger_document
from meshwright.say.vocabulary import problems

from .conftest import notes, pairs, table

DOLLAR_A_SECOND = Rate(usd_per_gpu_hour=Decimal(3600), provider="us", kind="given", date="2026-11-15", source="a <test>")


def ledger(step_s: float = 3600.0, num_ranks: int = 4, price: Rate | None = DOLLAR_A_SECOND, **extra: float) -> Ledger:
    """Of a run of one step, three quarters of which compute."""
    header = RunHeader(name="first", kind="trained", seed=0, num_ranks=num_ranks, machine="four", status="target_reached")
    parts_s = {"compute": 0.75 * step_s, "bubble": 0.25 * step_s}
    record = StepRecord(step=1, samples=1, loss=1.0, grad_norm=1.0, step_s=step_s, parts_s=parts_s, extra=extra)
    return ledger_of_run(Run(Path("nowhere"), header, (record,), (), ()), None, price=price)


def test_hours_dollars_and_shares_worked_by_hand() -> None:
    document = ledger_document(ledger())
    assert document.title == "ledger of first: trained, target reached" and document.kind == "ledger"
    said = pairs(document)
    assert said["paid for"] == "60 min of 4 accelerators: 4 accelerator-hours"
    assert said["cost"] == "14,400.00 USD" and said["price from"] == "a <test>" and said["energy"] == said["water"] == "unknown"
    rows = {row[0]: row[1:] for row in table(document, "by state").rows}
    assert rows["compute"] == ("3.0000", "75.00 %", "10,800.00", "-") and rows["bubble"] == ("1.0000", "25.00 %", "3,600.00", "-")
    assert rows["total"] == ("4.0000", "100.00 %", "14,400.00", "-") and rows["idle"] == ("0.0000", "0.00 %", "0.00", "-")
    assert problems(document.to_json()) == []


def test_metered_energy_is_shared_among_the_states() -> None:
    document = ledger_document(ledger(energy_j=3.6e6 * 8))
    assert pairs(document)["energy"] == "8 kWh at the wall, metered"
    rows = {row[0]: row[-1] for row in table(document, "by state").rows}
    assert (rows["compute"], rows["bubble"], rows["total"]) == ("6 kWh", "2 kWh", "8 kWh")


def test_without_a_price_nothing_costs_anything_that_is_known() -> None:
    document = ledger_document(ledger(price=None))
    said = pairs(document)
    assert (said["cost"], said["price"]) == ("unknown: no price", "unknown") and "price from" not in said
    assert {row[3] for row in table(document, "by state").rows} == {"-"}
    assert any("price" in note and "2.5USD/h" in note for note in notes(document))


@pytest.mark.parametrize("step_s, shown", [(0.0001, "0.0004 USD"), (0.2, "0.8 USD"), (0.25, "1.00 USD"), (1000.0, "4,000.00 USD")])
def test_a_run_below_a_dollar_is_shown_with_the_digits_that_matter(step_s: float, shown: str) -> None:
    assert pairs(ledger_document(ledger(step_s)))["cost"] == shown


def test_a_run_of_nothing_has_no_shares() -> None:
    empty = replace(ledger(), entries=(), wall_s=0.0, usd_unrounded=Decimal(0))
    rows = table(ledger_document(empty), "by state").rows
    assert {row[2] for row in rows} == {"-"} and rows[-1] == ("total", "0.0000", "-", "0.00", "-")
    assert pairs(ledger_document(empty))["cost"] == "0.00 USD"


def test_what_was_done_again_is_said_with_its_dollars() -> None:
    whole = ledger()
    lost = replace(whole, entries=tuple(replace(entry, is_lost=entry.state == "bubble") for entry in whole.entries))
    assert pairs(ledger_document(lost))["done again"] == "1 accelerator-hours, 3,600.00 USD"
    assert pairs(ledger_document(replace(lost, usd_unrounded=None)))["done again"] == "1 accelerator-hours"
    assert "done again" not in pairs(ledger_document(whole))


def test_carbon_and_water_name_their_place() -> None:
    site = replace(ledger().energy, carbon_kg=12.0, region="norway", method="operational", region_year=2024, pue=1.1, facility="a hall")
    known = replace(ledger(), energy=replace(site, facility_year=2025, water_l=50.0, wue_l_per_kwh=0.5))
    said = pairs(ledger_document(known))
    assert said["carbon"] == "12 kg CO2e (grid of norway, operational, 2024; PUE 1.1, a hall, 2025)"
    assert said["water"] == "50 l on site (a hall, 2025, 0.5 l per kWh of the computers)"


def test_large_hours_have_commas_and_notes_come_as_they_are() -> None:
    header = RunHeader(name="first", kind="trained", seed=0, num_ranks=5000, machine="m")
    run = Run(Path("nowhere"), header, (), (Event(time_s=0.0, kind="start", step=0), Event(time_s=3600.0, kind="stopped", step=0)), ())
    document = ledger_document(ledger_of_run(run, None, price=DOLLAR_A_SECOND, notes=["<b>"]))
    assert pairs(document)["paid for"] == "60 min of 5,000 accelerators: 5,000 accelerator-hours"
    assert notes(document)[0] == "<b>"
