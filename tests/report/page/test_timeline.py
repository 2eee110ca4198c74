"""The timeline of a step: operations where they are, and areas that are times."""

from __future__ import annotations

import re

import pytest

from meshwright.plan.trace import LaidOut
from meshwright.predict.forecast import Forecast
from meshwright.report.page.timeline import LABELS, WIDTH, _shares, timeline_picture


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
