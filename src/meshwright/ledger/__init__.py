"""The accounts of a run: accelerator-seconds by state, money, energy, carbon and water."""

from meshwright.ledger.book import STATES, Entry, Ledger, ledger_of, ledger_of_run
from meshwright.ledger.budget import Budget, amount, evaluation_s, no_price, predicted_s, read_budget, recorded_budget
from meshwright.ledger.export import ledger_csv, ledger_json, ledger_values
from meshwright.ledger.own_plan import checked_plan, own_plan
from meshwright.ledger.rate import Rate, rate_of, read_rate

__all__ = [
    "STATES",
    "Budget",
    "Entry",
    "Ledger",
    "Rate",
    "amount",
    "checked_plan",
    "evaluation_s",
    "ledger_csv",
    "ledger_json",
    "ledger_of",
    "ledger_of_run",
    "ledger_values",
    "no_price",
    "own_plan",
    "predicted_s",
    "rate_of",
    "read_budget",
    "read_rate",
    "recorded_budget",
]
