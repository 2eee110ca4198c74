"""Drawings of runs: places and counts worked by hand, few and many steps, numbers that are none, names escaped."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from pages import Elements, words

from meshwright.plan.plan import Plan
from meshwright.record.entries import Event
from meshwright.report.facts import RunFacts, facts_of_runs
from meshwright.report.page.run_charts import (
    MAX_ARROWS,
    MAX_DOTS,
    MAX_MARKS,
    _time_axis,
    box_table,
    compact,
    event_lanes,
    has_loss,
    loss_chart,
    run_legend,
    spread_chart,
    stacked,
    step_chart,
)


def facts(folder) -> RunFacts:  # type: ignore[no-untyped-def]
    (found,) = facts_of_runs([folder])
    return found


@pytest.mark.parametrize(
    "value, text", [(0, "0"), (999, "999"), (1000, "1k"), (1500, "1.5k"), (2e6, "2M"), (3e9, "3G"), (-2500, "-2.5k"), (0.25, "0.25")]
)
def test_counts_as_an_axis_writes_them(value: float, text: str) -> None:
    assert compact(value) == text


def test_the_loss_is_drawn_with_its_mean_evaluations_and_target(make_run) -> None:
    events = [("evaluation", step, 0.5 * step, {"loss": 5.0, "seconds": 0.1}) for step in (10, 20, 40)]
    drawn = loss_chart([facts(make_run("<b>", events=events, target=4.5))], ["red"])
    assert drawn.count("<polyline") == 2 and drawn.count("<circle") == 3 and "target 4.5" in drawn
    assert "&lt;b&gt;: evaluation after 160 samples, loss 5.0000" in drawn and "<b>" not in drawn
    Elements(drawn)


def test_runs_over_each_other_have_a_line_each(make_run) -> None:
    runs = facts_of_runs([make_run("a"), make_run("b")])
    drawn = loss_chart(runs, ["red", "blue"])
    assert drawn.count("<polyline") == 2 and drawn.count('stroke="red"') == 1


def test_a_run_without_a_loss_says_so_and_is_left_out_beside_others(make_run) -> None:
    simulated, trained = facts(make_run("s", kind="simulated")), facts(make_run("t"))
    assert not has_loss(simulated) and "No loss is recorded" in loss_chart([simulated], ["red"])
    assert loss_chart([simulated, trained], ["red", "blue"]).count('stroke="blue"') == 2  # alone, it has its steps too
    assert "No loss is recorded" in loss_chart([], [])


@pytest.mark.parametrize("loss", [math.nan, math.inf, None, "bad"])
def test_an_evaluation_without_a_number_is_no_point(make_run, loss: object) -> None:
    events = [("evaluation", 40, 30.0, {"loss": loss, "seconds": 1.0})]
    drawn = loss_chart([facts(make_run(events=events))], ["red"])
    assert drawn.count("<circle") == 0
    Elements(drawn)


def test_of_very_many_evaluations_some_are_drawn(make_run) -> None:
    events = [("evaluation", step, 0.5 * step, {"loss": 3.0, "seconds": 0.1}) for step in range(1, 401)]
    drawn = loss_chart([facts(make_run(times_s=[0.5] * 400, events=events))], ["red"])
    assert MAX_DOTS / 2 < drawn.count("<circle") <= MAX_DOTS


def test_few_steps_are_a_line_and_a_slow_one_an_arrow(make_run) -> None:
    drawn = step_chart(facts(make_run(times_s=[*[0.5, 0.51] * 20, 9.0])))
    assert drawn.count("<polyline") == 1 and drawn.count("\u25b4</text>") == 1
    assert "<title>step 41: 9 s</title>" in drawn and "1 of 41 steps lie above the frame" in drawn
    assert "median 510 ms (dashed)" in drawn  # of the steady steps: the first is none


def test_of_many_slow_steps_the_slowest_are_marked(make_run) -> None:
    times = [0.5] * 1000
    for number in range(100):
        times[10 * number] = 10.0 + number
    evaluations = [("evaluation", 10 * number, 1.0, {"loss": 3.0}) for number in range(100)]  # the step after one is not steady
    drawn = step_chart(facts(make_run(times_s=times, events=evaluations)))
    assert drawn.count("\u25b4</text>") == MAX_ARROWS and "step 991: 109 s" in drawn
    assert "Line: median of neighbouring steps" in drawn and "<polygon" in drawn


@pytest.mark.parametrize("times", [[0.5], [0.5, 0.5], [1e-9, 1e9, 1.0], [1e-5] * 30, [5000.0] * 30])
def test_one_step_and_steps_of_any_length_are_drawn(make_run, times: list[float]) -> None:
    for drawn in (step_chart(facts(make_run(times_s=times))),):
        Elements(drawn)
        assert "nan" not in drawn and "inf" not in re.findall(r"[a-z]+", drawn.lower())


def test_the_prediction_is_a_level_where_it_is_near(make_run, workstation: Plan) -> None:
    near = step_chart(facts(make_run("near", plan=workstation, times_s=[workstation.step_s * (1 + 0.001 * (n % 3)) for n in range(40)])))
    far = step_chart(facts(make_run("far", plan=workstation, times_s=[workstation.step_s * 50.0] * 40)))
    assert "predicted " in near and "predicted " not in far


@pytest.mark.parametrize("high_s, unit, label", [(5e-4, "us", "500"), (0.5, "ms", "500"), (50.0, "s", "50"), (3000.0, "min", "50")])
def test_durations_on_an_axis_have_one_unit(high_s: float, unit: str, label: str) -> None:
    axis = _time_axis(0.0, high_s, "step time")
    assert axis.name == f"step time, {unit}" and axis.marks[-1][1] == label


def test_half_of_the_steps_take_no_longer_than_the_median(make_run, steps_around) -> None:
    drawn = spread_chart([facts(make_run(times_s=steps_around(400)))], ["red"])
    (points,) = re.findall(r'<polyline points="([^"]+)"', drawn)
    places = np.array([[float(value) for value in pair.split(",")] for pair in points.split()])
    (zero,) = re.findall(r'<line x1="([\d.]+)%"[^>]+><title>the median</title>', drawn)
    assert np.interp(10 * float(zero), places[:, 0], places[:, 1]) == pytest.approx(500, abs=15)
    assert (np.diff(places[:, 1]) <= 0).all()  # a share never falls


def test_runs_stand_on_one_scale_in_boxes(make_run) -> None:
    runs = facts_of_runs([make_run("<short>", times_s=[0.5] * 40), make_run("long", times_s=[1.0] * 40)])
    drawn = box_table(runs, ["red", "blue"])
    middles = [float(x) for x in re.findall(r'<line x1="([\d.]+)%" x2="\1%" y1="1" y2="15"', drawn)]
    assert middles == pytest.approx([100 * 0.5 / 1.04, 100 / 1.04], abs=0.01)
    assert "&lt;short&gt;" in drawn and "the scale starts at" not in drawn
    close = box_table(facts_of_runs([make_run("a", times_s=[0.9] * 9), make_run("b", times_s=[1.0] * 9)]), ["red", "blue"])
    assert "the scale starts at " in close


def test_stacked_parts_lie_end_to_end_and_a_negative_one_is_nothing() -> None:
    drawn = stacked([("<a>", [("one", "red", 1.0), ("less", "blue", -5.0), ("two", "red", 3.0)], "4 s")], 4.0, "label")
    places = re.findall(r'<rect x="([\d.]+)%" width="([\d.]+)%"', drawn)
    assert [float(x) for x, _ in places] == [0.0, 25.0, 25.0] and float(places[2][1]) == pytest.approx(75, abs=0.2)
    assert "&lt;a&gt;" in drawn and words(drawn).startswith("<a> 4 s")
    assert stacked([], 1.0, "none").count("<rect") == 0


def event(time_s: float, kind: str) -> Event:
    return Event(time_s=time_s, kind=kind, step=0)


def test_events_stand_in_lanes_by_kind_in_a_fixed_order() -> None:
    drawn = event_lanes([event(50.0, "my_own"), event(100.0, "finished"), event(0.0, "start"), event(25.0, "fault"), event(75.0, "fault")])
    assert re.findall(r'class="lane"><span>([^<]+) <b>', drawn) == ["start", "fault", "finished", "my own"]
    fault = drawn.split(">fault ")[1].split("</svg>")[0]
    assert re.findall(r'<line x1="([\d.]+)%" x2="\1%"', fault) == ["25.000", "75.000"] and "<b>2</b>" in drawn


@pytest.mark.parametrize("end_s, unit", [(0.0, "s"), (60.0, "s"), (3600.0, "min"), (86400.0, "h"), (30 * 86400.0, "days")])
def test_the_time_of_a_run_has_one_unit(end_s: float, unit: str) -> None:
    drawn = event_lanes([event(0.0, "start"), event(end_s, "stopped")])
    assert f">{unit}</text>" in drawn
    Elements(drawn)


def test_thousands_of_events_are_a_few_marks_and_strange_times_do_no_harm() -> None:
    drawn = event_lanes([event(float(number), "evaluation") for number in range(20_000)])
    assert drawn.count("stroke-width") <= MAX_MARKS + 1 and "<b>20,000</b>" in drawn
    for times in ([], [-5.0], [-5.0, 10.0]):
        Elements(event_lanes([event(time_s, "<nan>") for time_s in times]))


def test_a_legend_names_the_runs(make_run) -> None:
    drawn = run_legend(facts_of_runs([make_run("a&b"), make_run("c")]))
    assert "a&amp;b" in drawn and drawn.count("<i style=") == 2
