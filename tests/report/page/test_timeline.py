"""The timeline of a step: operations where they are, and areas that are times."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from pages import Elements, words

from meshwright.plan.trace import LaidOut
from meshwright.predict.forecast import Forecast
from meshwright.report.page.timeline import LABELS, WIDTH, _shares, timeline_picture
from meshwright.units import seconds


def test_operations_are_drawn_where_they_are(record_forecast: Forecast) -> None:
    step = LaidOut.of(record_forecast)
    drawn = timeline_picture(step)
    boxes = [
        (float(x), float(width))
        for x, width in re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)" height="18" fill="[^"]+"><title>[FB] chunk', drawn)
    ]
    assert len(boxes) == 1024
    scale = (WIDTH - LABELS - 2.0) / record_forecast.step_s
    busy = float(step.schedule.busy_s.sum()) * step.stretch * scale
    assert sum(width for _, width in boxes) == pytest.approx(busy, rel=0.06)  # less a hairline between neighbours
    assert min(x for x, _ in boxes) == pytest.approx(LABELS + step.weights_s * scale, abs=0.01)


def test_many_operations_keep_their_areas(many_operations_forecast: Forecast) -> None:
    step = LaidOut.of(many_operations_forecast)
    shares = _shares(step, 400)
    busy_s = shares.sum(axis=(0, 2)) * many_operations_forecast.step_s / 400
    assert busy_s == pytest.approx(step.schedule.busy_s * step.stretch, rel=1e-9)
    assert shares.min() >= -1e-12 and shares.sum(axis=0).max() <= 1 + 1e-9
    drawn = timeline_picture(step)
    assert "<title>F chunk" not in drawn and "too many to draw one by one" in drawn


def test_areas_drawn_in_columns_are_those_of_the_schedule(many_operations_forecast: Forecast) -> None:
    step = LaidOut.of(many_operations_forecast)
    runs = re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v([\d.]+)", timeline_picture(step))
    area = sum(float(width) * float(height) for width, height in runs)
    scale = (WIDTH - LABELS - 2.0) / many_operations_forecast.step_s
    assert area == pytest.approx(float(step.schedule.busy_s.sum()) * step.stretch * scale * 18.0, rel=0.01)


def test_one_stage_has_one_row_and_no_bubble(workstation_forecast: Forecast) -> None:
    drawn = timeline_picture(LaidOut.of(workstation_forecast))
    assert ">stage 0</text>" in drawn and ">stage 1</text>" not in drawn and "Stages idle" not in drawn
    Elements(drawn)


def test_all_rectangles_lie_inside_the_picture(forecast: Forecast) -> None:
    drawn = timeline_picture(LaidOut.of(forecast))
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawn)
    height = float(re.search(r'viewBox="0 0 1180 ([\d.]+)"', drawn).group(1))  # type: ignore[union-attr]
    assert boxes
    for x, y, width, high in (tuple(map(float, box)) for box in boxes):
        assert x >= LABELS - 0.01 and x + width <= WIDTH + 0.01 and 0 <= y <= y + high <= height


def test_operations_of_one_stage_do_not_overlap(record_forecast: Forecast) -> None:
    drawn = timeline_picture(LaidOut.of(record_forecast))
    rows: dict[str, list[tuple[float, float]]] = {}
    for x, y, width in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="18" fill="[^"]+"><title>[FB] chunk', drawn):
        rows.setdefault(y, []).append((float(x), float(x) + float(width)))
    assert len(rows) == record_forecast.layout.pp
    assert all(end <= start + 0.02 for spans in rows.values() for (_, end), (start, _) in pairwise(sorted(spans)))


def test_the_caption_counts_operations_and_idle_time(record_forecast: Forecast) -> None:
    step = LaidOut.of(record_forecast)
    idle = 100 * float(step.schedule.idle_s.mean()) / step.schedule.makespan_s
    text = words(timeline_picture(step))
    assert "1,024 operations of 8 micro-batches x 8 chunks x 8 stages; point at one for its times." in text
    assert f"Stages idle {idle:.1f} % of the pipeline's time on average." in text
    assert "Operations include the traffic that they wait for: exposed tp" in text


def test_what_the_ends_of_a_step_wait_for_is_named_with_its_time(record_forecast: Forecast) -> None:
    step = LaidOut.of(record_forecast)
    drawn = timeline_picture(step)
    assert f"<title>optimizer: {seconds(step.optimized_s - step.reduced_s)}</title>" in drawn
    assert f"<title>waiting for the last gradients: {seconds(step.reduced_s - step.drained_s)}</title>" in drawn
