"""Bars in tables: they add up, and what is cut or does not fit is marked."""

from __future__ import annotations

import re

import pytest

from meshwright.layout import Layouts
from meshwright.plan.explain import Change, traffic
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.forecast import Forecast
from meshwright.predict.prediction import predict
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.page.bars import axes_table, changes_table, memory_table, parts_of, waterfall


def test_the_waterfall_adds_up_to_the_step(forecast: Forecast) -> None:
    parts = parts_of(forecast)
    assert sum(part.seconds for part in parts) == pytest.approx(forecast.step_s)
    spans = [(float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)%" y="1" width="([\d.]+)%"', waterfall(forecast))]
    assert len(spans) == len(parts) + 1
    for (x, _), part, (after, _) in zip(spans, parts, spans[1:-1], strict=False):
        assert after == pytest.approx(x + part.seconds / forecast.step_s * spans[-1][1], abs=0.01)


def test_what_the_exact_schedule_adds_to_the_closed_form_is_bubble(record_forecast: Forecast) -> None:
    closed = predict(record_forecast.job, Layouts.of([record_forecast.layout]))
    added_s = record_forecast.step_s - float(closed.step_s[0])
    shown = {part.name: part.seconds for part in parts_of(record_forecast)}
    assert added_s != 0 and shown["bubble"] == pytest.approx(float(closed.parts["bubble"][0]) + added_s)
    assert {name for name in shown if name != "bubble"} == {
        PART_NAMES[part] for part in PARTS if part != "bubble" and closed.parts[part][0] > 0
    }


def test_memory_bars_stack_up_to_the_peak(record_forecast: Forecast) -> None:
    fullest = max(record_forecast.memory, key=lambda stage: stage.peak_bytes)
    assert fullest.peak_bytes == pytest.approx(sum(fullest.parts[part] for part in MEMORY_PARTS))
    assert fullest.peak_bytes == pytest.approx(record_forecast.peak_memory_bytes)
    assert "1 \u2013 3" in memory_table(record_forecast)  # stages that hold the same share a row


def test_axes_say_what_is_exposed(record_forecast: Forecast) -> None:
    drawn = axes_table(traffic(record_forecast))
    assert drawn.count("<tr>") == 5 and "133.5 ms" in drawn and "103 GB" in drawn


def test_changes_are_cut_with_an_arrow_and_those_without_effect_named() -> None:
    changes = [
        Change(what=what, step_s=1.0, gain_pct=gain, fits=fits)
        for what, gain, fits in (("a", 5.0, True), ("b", 2.0, False), ("c", 0.0, True), ("d", -70.0, True))
    ]
    drawn = changes_table(changes)
    assert "Without effect here: c." in drawn and drawn.count("\u25c2") == 1 and drawn.count("does not fit") == 1
