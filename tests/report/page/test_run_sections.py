"""Parts of a run's page: who was slow, where time and money went, what was not recorded."""

from __future__ import annotations

from pathlib import Path

from meshwright.report.facts import facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.report.page.run_sections import beyond_chance


def test_the_slowest_replica_is_named_where_it_is_no_chance(simulated: Path) -> None:
    assert "replica 5" in run_page(facts_of_runs([simulated]))
    assert beyond_chance(100, 100, 8) and beyond_chance(60, 324, 128)
    assert not beyond_chance(3, 65, 128) and not beyond_chance(12, 100, 8)
