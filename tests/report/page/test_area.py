"""Charts that stretch: places worked by hand, what lies beyond the frame at its edge, and columns that keep extremes and means."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.report.page.area import BOTTOM, TOP, Axis, Plot, buckets, extremes, smoothed

PLOT = Plot(Axis.linear(0.0, 10.0, "across", "{:g}".format), Axis.linear(0.0, 4.0, "up", "{:g}".format), 130.0)  # a frame of 100 pixels
VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


def column(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float64)


def test_a_value_stands_where_its_share_of_the_axis_is() -> None:
    assert PLOT.frame == 130 - TOP - BOTTOM == 100
    assert (PLOT.across(2.5), PLOT.up(1.0), PLOT.up(4.0)) == ("25.00%", TOP + 75.0, TOP)
    assert (PLOT.across(-3.0), PLOT.across(30.0), PLOT.up(-1.0)) == ("0.00%", "100.00%", TOP + 100.0)  # at the edge


def test_a_logarithmic_axis_gives_every_decade_the_same_room() -> None:
    axis = Axis.logarithmic(1.0, 1000.0, "n", "{:g}".format)
    assert [axis.share(value) for value in (1.0, 10.0, 100.0, 1000.0)] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    tens = Axis.logarithmic(10.0, 1000.0, "n", "{:g}".format)
    assert tens.share(100.0) == pytest.approx(0.5) and tens.shares(column(10.0, 100.0, 1000.0)) == pytest.approx([0, 0.5, 1])
    assert [value for value, _ in axis.marks] == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]
    assert [words for _, words in Axis.logarithmic(1.0, 9.0, "n", "{:g}!".format, (2.0, 3.0)).marks] == ["2!", "3!"]


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-9])
def test_an_axis_of_one_value_has_room_around_it(value: float) -> None:
    axis = Axis.linear(value, value, "n", "{:g}".format)
    assert axis.low < value < axis.high and axis.share(value) == pytest.approx(0.5)


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9) | st.just(0.0))
def test_marks_of_a_linear_axis_lie_on_it(low: float, span: float) -> None:
    axis = Axis.linear(low, low + span, "n", "{:g}".format)
    assert axis.marks and all(-1e-6 <= axis.share(value) <= 1 + 1e-6 for value, _ in axis.marks)


def test_lines_bands_and_specks_are_places_of_a_thousand() -> None:
    line = ET.fromstring(PLOT.line(column(0, 5, 20), column(4, 2, -1), "red"))
    assert line.get("points") == "0,0 500,500 1000,1000" and line.get("vector-effect") == "non-scaling-stroke"
    band = ET.fromstring(PLOT.band(column(0, 10), column(0, 1), column(4, 3), "red"))
    assert band.get("points") == "0,0 1000,250 1000,750 0,1000"  # along the top, and back along the bottom
    assert ET.fromstring(PLOT.specks(column(0, 10), column(0, 4), "red")).get("d") == "M0 1000h0M1000 0h0"


def test_marks_say_what_they_are_when_pointed_at() -> None:
    dot = ET.fromstring(PLOT.dot(5.0, 2.0, "red", "a < b"))
    assert (dot.get("cx"), dot.get("cy"), dot[0].text) == ("50.00%", f"{TOP + 50:g}", "a < b")
    whisker = ET.fromstring(PLOT.whisker(5.0, 1.0, 3.0, "red"))
    assert (whisker.get("y1"), whisker.get("y2")) == (f"{TOP + 75:g}", f"{TOP + 25:g}")
    assert ET.fromstring(PLOT.upright(10.0, "red", "the <median>"))[0].text == "the <median>"
    assert ET.fromstring(PLOT.arrow(0.0, "red", "far above"))[0].text == "far above"


def test_words_of_a_level_stand_above_it_or_below_where_the_frame_ends() -> None:
    def words_y(value: float) -> float:
        (text,) = ET.fromstring(f"<g>{PLOT.level(value, 'red', 'target')}</g>").findall("text")
        return float(text.get("y", "nan"))

    assert words_y(2.0) < PLOT.up(2.0) and words_y(4.0) > PLOT.up(4.0)
    only = ET.fromstring(PLOT.level(2.0, "red", "a & b", is_written=False))
    assert only.tag == "line" and only[0].text == "a & b"


def test_the_whole_chart_is_one_picture_with_its_names_and_ticks() -> None:
    drawn = PLOT.drawn("loss of <a>", [PLOT.line(column(0, 1), column(0, 1), "red")])
    root = ET.fromstring(drawn)
    assert (root.get("role"), root.get("aria-label")) == ("img", "loss of <a>")
    assert [element.text for element in root.iter("p")] == ["up", "across"]
    texts = [element.text for element in root.iter("text")]
    assert texts[: len(PLOT.y.marks)] == [words for _, words in PLOT.y.marks]
    anchors = [element.get("text-anchor") for element in root.iter("text")][len(PLOT.y.marks) :]
    below = [float(element.get("y", "nan")) for element in root.iter("text")][len(PLOT.y.marks) :]
    assert all(TOP + PLOT.frame < y <= PLOT.height for y in below)  # the words of ticks stand under the frame
    assert (anchors[0], anchors[-1]) == ("start", "end") and "middle" in anchors  # labels at the edges stay inside


@given(VALUES)
def test_a_line_by_its_extremes_keeps_the_ends_and_both_extremes_in_order(values: list[float]) -> None:
    xs, ys = np.arange(len(values), dtype=np.float64), np.array(values)
    few_x, few_y = extremes(xs, ys, 5)
    assert (np.diff(few_x) > 0).all() and len(few_x) <= max(2 * 5 + 2, len(values) if len(values) <= 10 else 0)
    assert (few_y == ys[few_x.astype(int)]).all()
    assert {ys.min(), ys.max(), ys[0], ys[-1]} <= set(few_y.tolist())


def test_buckets_are_percentiles_of_neighbours() -> None:
    middle, low, median, high = buckets(np.arange(20.0), np.concatenate((np.arange(10.0), np.full(10, 7.0))), 2)
    assert middle.tolist() == [4.5, 14.5]
    assert (low[0], median[0], high[0]) == pytest.approx((0.9, 4.5, 8.1)) and low[1] == median[1] == high[1] == 7.0
    one = buckets(column(3.0), column(9.0), 180)
    assert [float(values[0]) for values in one] == [3.0, 9.0, 9.0, 9.0]


@given(VALUES, st.integers(0, 80))
def test_a_running_mean_stays_between_the_extremes_and_keeps_what_is_constant(values: list[float], width: int) -> None:
    ys = np.array(values)
    mean, room = smoothed(ys, width), 1e-9 * (1 + np.abs(ys).max() * len(ys))
    assert len(mean) == len(ys) and mean.min() >= ys.min() - room and mean.max() <= ys.max() + room


def test_a_running_mean_worked_by_hand() -> None:
    assert smoothed(column(1, 2, 6, 3, 0), 3).tolist() == pytest.approx([1.5, 3.0, 11 / 3, 3.0, 1.5])  # fewer at the ends
    assert smoothed(column(1, 2, 6), 1).tolist() == [1, 2, 6]
