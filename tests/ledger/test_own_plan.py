"""The plan that a run ran by: taken only if its digest is the recorded one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from meshwright.ledger import ledger_of
from meshwright.plan.plan import plan_bytes

from .conftest import new, racks, step


def test_a_plan_that_is_not_the_runs_own_is_reported_and_gives_neither_price_nor_power(tmp_path: Path) -> None:
    with new(tmp_path, plan=racks()) as writer:
        writer.step(step(1))
    assert ledger_of(tmp_path / "a").usd is not None
    (tmp_path / "a" / "plan.json").write_bytes(plan_bytes(replace(racks(), name="another")))
    ledger = ledger_of(tmp_path / "a")
    assert (ledger.usd, ledger.price, ledger.energy_j) == (None, None, None)
    assert ledger.notes[0].startswith("plan.json is not the run's own plan (its digest is ")
