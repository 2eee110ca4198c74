"""Efficiency is T_base / T_new x work ratio, with an interval, and noise is called noise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.layout import Layout
from meshwright.plan.plan import Plan
from meshwright.report.documents import report_document
from meshwright.report.facts import facts_of_runs
from meshwright.report.page.run_page import run_page
from meshwright.report.scaling import left_out, scalings
from meshwright.say.markdown import markdown


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
    assert last.text.startswith("2 to 8: 10.") and "% lost (95 %:" in last.text


def test_a_difference_below_the_noise_says_so_plainly(run_at) -> None:
    (weak,) = scalings(facts_of_runs([run_at(2, 32, 0.5, spread=0.03), run_at(4, 64, 0.501, spread=0.03)]))
    assert "is below the noise within the runs" in weak.points[1].text


def test_a_small_difference_of_single_runs_is_not_taken_for_sure(run_at) -> None:
    (weak,) = scalings(facts_of_runs([run_at(2, 32, 0.5), run_at(4, 64, 0.505)]))
    assert "That is below the noise between runs" in weak.points[1].text


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


NOISE, SLOW = "noise as logs show it", "rank 3 2 times as slow"


@pytest.fixture
def simulated_at(make_run, workstation: Plan, steps_around):
    def made(name: str, num_ranks: int, step_s: float, *conditions: str) -> Path:
        times = steps_around(200, step_s, 0.002, seed=num_ranks)
        plan = sized(workstation, num_ranks)
        return make_run(name, plan=plan, batch=16 * num_ranks, times_s=times, kind="simulated", conditions=(NOISE, *conditions))

    return made


def test_a_run_with_a_slow_rank_is_no_repeat_of_a_sound_one(simulated_at) -> None:
    folders = [simulated_at("healthy2", 2, 0.50), simulated_at("slow2", 2, 1.0, SLOW), simulated_at("healthy4", 4, 0.51)]
    runs = facts_of_runs(folders)
    (weak,) = scalings(runs)
    assert [point.labels for point in weak.points] == [("healthy2",), ("healthy4",)]
    assert weak.points[1].efficiency == pytest.approx(0.5 / 0.51, rel=2e-3)
    sentence = "slow2 is left out of scaling: simulated with rank 3 2 times as slow; healthy4 without."
    document = report_document(runs)
    assert left_out(runs) == document.to_json()["scaling_left_out"] == [sentence]
    assert sentence in markdown(document) and sentence in run_page(runs)


def test_runs_of_the_same_conditions_have_a_series_of_their_own(simulated_at) -> None:
    sound = [simulated_at("healthy2", 2, 0.50), simulated_at("healthy4", 4, 0.51)]
    runs = facts_of_runs([*sound, simulated_at("slow2", 2, 1.0, SLOW), simulated_at("slow4", 4, 1.1, SLOW)])
    assert [[point.labels for point in scaling.points] for scaling in scalings(runs)] == [
        [("healthy2",), ("healthy4",)],
        [("slow2",), ("slow4",)],
    ]
    assert [scaling.of.split(" with ")[1] for scaling in scalings(runs)] == [NOISE, f"{NOISE}, {SLOW}"]
    assert left_out(runs) == []


def test_two_sizes_under_different_conditions_are_no_series_and_say_so(simulated_at) -> None:
    runs = facts_of_runs([simulated_at("slow2", 2, 1.0, SLOW), simulated_at("healthy4", 4, 0.51)])
    assert scalings(runs) == []
    assert [note.split(" is left out of scaling: ")[0] for note in left_out(runs)] == ["slow2", "healthy4"]
    assert left_out(runs)[0] in run_page(runs)
