"""Curves over accelerator counts: points inside the frame, the ideal beside them, notes and names escaped."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from meshwright.report.page.curves import LABEL_ROOM, MAX_LABELS, ParetoPoint, ScalingPoint, pareto_chart, scaling_chart


def test_a_single_point_can_be_drawn() -> None:
    point = ScalingPoint(num_accelerators=8, step_s=1.0, low_s=0.9, high_s=1.2, efficiency=1.0)
    assert scaling_chart([point]).count("<circle") == 1
    assert pareto_chart([ParetoPoint(num_accelerators=8, time_to_train_s=100.0, cost_usd=10.0)]).count("<circle") == 1


def test_points_stay_inside_the_frame() -> None:
    points = [
        ScalingPoint(
            num_accelerators=64 * 2**k, step_s=8.0 / 1.5**k, low_s=7.0 / 1.5**k, high_s=9.0 / 1.5**k, efficiency=0.75**k, kind="strong"
        )
        for k in range(6)
    ]
    drawn = scaling_chart(points)
    heights = [float(y) for pair in re.findall(r'points="([^"]+)"', drawn) for y in re.findall(r",([\d.]+)", pair)]
    assert min(heights) >= 26.0 and max(heights) <= 254.0


def step(num_accelerators: int, step_s: float, kind: str = "weak", note: str = "") -> ScalingPoint:
    efficiency = 0.875
    return ScalingPoint(
        num_accelerators=num_accelerators,
        step_s=step_s,
        low_s=0.9 * step_s,
        high_s=1.1 * step_s,
        efficiency=efficiency,
        kind=kind,
        note=note,
    )


def run(num_accelerators: int, time_s: float, usd: float, note: str = "") -> ParetoPoint:
    return ParetoPoint(num_accelerators=num_accelerators, time_to_train_s=time_s, cost_usd=usd, note=note)


def lines(drawn: str) -> list[list[tuple[float, float]]]:
    """The points of every line."""
    found = re.findall(r'<polyline points="([^"]+)"', drawn)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in points.split())] for points in found]


def test_the_ideal_of_weak_scaling_is_flat_and_that_of_strong_scaling_halves() -> None:
    drawn = scaling_chart([step(8, 1.0), step(16, 1.2), step(8, 4.0, "strong"), step(16, 2.5, "strong")])
    weak_ideal, weak, strong_ideal, strong = lines(drawn)
    assert weak_ideal[0][1] == weak_ideal[1][1] and weak[0] == weak_ideal[0]
    assert weak[1][1] < weak_ideal[1][1]  # a longer step stands higher
    decade = strong_ideal[0][1] - weak_ideal[0][1]  # from 1 s to 4 s, two doublings
    assert strong_ideal[1][1] - strong_ideal[0][1] == pytest.approx(-decade / 2, abs=0.2)
    assert strong[1][1] < strong_ideal[1][1]
    assert "weak scaling: batch grows" in drawn and "strong scaling: the batch stays" in drawn


def test_points_are_drawn_in_order_whatever_order_they_come_in() -> None:
    drawn = scaling_chart([step(32, 1.3), step(8, 1.0), step(16, 1.1)])
    assert [x for x, _ in lines(drawn)[1]] == sorted(x for x, _ in lines(drawn)[1])
    assert re.findall(r"<tr><td>weak</td><td class=\"num\">(\d+)</td>", drawn) == ["8", "16", "32"]


def test_notes_are_a_column_where_there_are_any_and_are_escaped() -> None:
    assert ">note</th>" not in scaling_chart([step(8, 1.0)])
    drawn = scaling_chart([step(8, 1.0, note="<i>tp=4"), step(16, 1.0)])
    assert ">note</th>" in drawn and "<i>tp" not in drawn and drawn.count("&lt;i&gt;tp=4") == 2  # in the table, and to point at
    assert "<i>" not in pareto_chart([run(8, 100.0, 10.0, "<i>tp=4")]).replace('<i style="', "")


def test_a_front_goes_from_the_fastest_on_and_rings_the_plan() -> None:
    drawn = pareto_chart([run(8, 400.0, 10.0), run(32, 100.0, 20.0)], run(16, 200.0, 15.0))
    (front,) = lines(drawn)
    assert front[0][0] < front[1][0] and front[0][1] < front[1][1]  # dearer stands higher
    assert drawn.count("<circle") == 3 and "<title>this plan</title>" in drawn and "the ring is this plan." in drawn
    assert "this plan" not in pareto_chart([run(8, 400.0, 10.0)])


@pytest.mark.parametrize("count", [1, 12, 13, 200])
def test_of_many_points_some_are_named(count: int) -> None:
    drawn = pareto_chart([run(8 * number, 1000.0 / number, 10.0 * number) for number in range(1, count + 1)])
    assert drawn.count("<circle") == count
    named = re.findall(r'font-size="11" text-anchor="(start|end)"', drawn)
    assert 1 <= len(named) <= MAX_LABELS


def test_labels_of_ticks_do_not_run_into_each_other() -> None:
    drawn = scaling_chart([step(8 * 2**k, 1.0) for k in range(14)])
    ticks = sorted(float(x) for x in re.findall(r'<text x="([\d.]+)" y="272" text-anchor="middle"', drawn))
    assert len(ticks) > 1 and all(after - before >= LABEL_ROOM - 0.01 for before, after in pairwise(ticks))
