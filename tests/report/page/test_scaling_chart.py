"""Efficiency over accelerators: points and intervals where they are, sizes labelled where there is room."""

from __future__ import annotations

import re

import pytest
from pages import Elements, words

from meshwright.report.page.scaling_chart import _apart, scaling_part
from meshwright.report.scaling import Point, Scaling


def point(num_ranks: int, efficiency: float, low: float | None = None, high: float | None = None, text: str = "") -> Point:
    return Point(
        labels=(f"run <{num_ranks}>",),
        num_ranks=num_ranks,
        batch=num_ranks,
        step_s=1.0,
        low_s=None if low is None else 0.9,
        high_s=None if high is None else 1.1,
        efficiency=efficiency,
        low=low,
        high=high,
        text=text,
    )


WEAK = Scaling(kind="weak", of="a & b", points=(point(8, 1.0, 1.0, 1.0), point(16, 0.95, 0.9, 1.0, "16 <is> slower"), point(32, 0.8)))


def test_every_size_is_a_point_and_those_that_have_an_interval_a_line() -> None:
    drawn = scaling_part([WEAK])
    assert drawn.count("<circle") == 3 and len(re.findall(r'stroke="var\(--weak\)" stroke-width="2"></line>', drawn)) == 2
    assert "16 accelerators: 95.00 % (run &lt;16&gt;)" in drawn and "<is>" not in drawn
    Elements(drawn)


def test_the_table_has_the_same_numbers_and_a_sentence_for_each_further_size() -> None:
    text = words(scaling_part([WEAK]))
    assert "95.00 % 90.00 to 100.00 %" in text and "80.00 % unknown" in text and "100.00 % base" in text
    assert "16 <is> slower" in text and "nothing lost" in text and "weak, a & b" in text


def test_several_series_stand_below_each_other_and_none_is_nothing() -> None:
    strong = Scaling(kind="strong", of="c", points=WEAK.points[:2])
    assert scaling_part([WEAK, strong]).count('class="two spaced"') == 2
    assert scaling_part([]) == ""


@pytest.mark.parametrize("efficiency", [1.0, 0.02, 3.5])
def test_a_series_of_one_size_or_of_any_efficiency_is_drawn_inside(efficiency: float) -> None:
    drawn = scaling_part([Scaling(kind="weak", of="a", points=(point(8, 1.0), point(8_000_000, efficiency)))])
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+%" cy="([\d.]+)"', drawn)]
    assert len(heights) == 2 and all(8 <= y <= 198 for y in heights)
    assert scaling_part([Scaling(kind="weak", of="a", points=(point(8, 1.0),))]).count("<circle") == 1


def test_sizes_that_stand_close_are_labelled_less_and_the_last_always() -> None:
    assert _apart([8.0]) == [8.0]
    assert _apart([8.0, 64.0, 512.0]) == [8.0, 64.0, 512.0]
    assert _apart([8.0, 64.0, 500.0, 512.0]) == [8.0, 64.0, 512.0]
    assert _apart([1.0, 1.01, 1000.0]) == [1.0, 1000.0]
