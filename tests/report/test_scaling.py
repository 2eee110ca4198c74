"""Efficiency is T_base / T_new x work ratio, with an interval, and noise is called noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.layout import Layout
from meshwright.plan.plan import Plan
from meshwright.report.facts import facts_of_runs
from meshwright.report.scaling import scalings


def sized(plan: Plan, num_ranks: int) -> Plan:
    return replace(plan, cluster=plan.cluster.resized(num_ranks), layout=Layout(dp=num_ranks))


@pytest.fixture
def run_at(make_run, workstation: Plan, steps_around):
    def made(num_ranks: int, batch: int, step_s: float, name: str = "", spread: float = 0.002) -> Path:
        times = steps_around(200, step_s, spread, seed=num_ranks + batch + len(name))
        return make_run(name or f"{num_ranks}-{batch}", plan=sized(workstation, num_ranks), batch=batch, times_s=times)

    return made


def test_weak_and_strong_series_are_found_among_runs(run_at) -> None:
    runs = facts_of_runs([run_at(2, 32, 0.50), run_at(8, 128, 0.56), run_at(4, 64, 0.52), run_at(2, 128, 2.0)])
    weak, strong = scalings(runs)
    assert (weak.kind, [p.num_ranks for p in weak.points]) == ("weak", [2, 4, 8])
    assert [p.efficiency for p in weak.points] == pytest.approx([1.0, 0.5 / 0.52, 0.5 / 0.56], rel=2e-3)
    assert (strong.kind, [p.num_ranks for p in strong.points]) == ("strong", [2, 8])
    assert strong.points[1].efficiency == pytest.approx(2.0 / 0.56 / 4, rel=2e-3)
    last = weak.points[-1]
    assert last.low is not None and last.high is not None and last.low < last.efficiency < last.high < 1.0
    assert last.said.startswith("2 to 8: 10.") and "% lost (95 %:" in last.said


def test_a_difference_below_the_noise_says_so_plainly(run_at) -> None:
    (weak,) = scalings(facts_of_runs([run_at(2, 32, 0.5, spread=0.03), run_at(4, 64, 0.501, spread=0.03)]))
    assert "is below the noise within the runs" in weak.points[1].said


def test_a_small_difference_of_single_runs_is_not_taken_for_sure(run_at) -> None:
    (weak,) = scalings(facts_of_runs([run_at(2, 32, 0.5), run_at(4, 64, 0.505)]))
    assert "That is below the noise between runs" in weak.points[1].said


def test_repeats_of_a_size_widen_its_interval_by_what_they_differ(run_at) -> None:
    alone = scalings(facts_of_runs([run_at(2, 32, 0.50), run_at(4, 64, 0.52)]))[0].points[1]
    again = [run_at(2, 32, 0.50, "a"), run_at(4, 64, 0.51, "bb"), run_at(4, 64, 0.53, "ccc")]
    both = scalings(facts_of_runs(again))[0].points[1]
    assert both.labels == ("bb", "ccc") and both.step_s == pytest.approx(0.52, rel=1e-3)
    assert None not in (alone.low, alone.high, both.low, both.high)
    assert both.high - both.low > 5 * (alone.high - alone.low)  # type: ignore[operator]


def test_sizes_that_are_neither_weak_nor_strong_are_called_so(run_at) -> None:
    (mixed,) = scalings(facts_of_runs([run_at(2, 32, 0.5), run_at(4, 48, 0.5)]))
    assert mixed.kind == "mixed" and mixed.points[1].efficiency == pytest.approx(0.75, rel=2e-3)


def test_runs_of_one_size_or_of_different_models_have_no_scaling(run_at, make_run, record: Plan) -> None:
    assert scalings(facts_of_runs([run_at(2, 32, 0.5), run_at(2, 64, 0.9), make_run("large", plan=record)])) == []
