"""Bars in tables: they add up, and what is cut or does not fit is marked."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from pages import Elements

from meshwright.layout import Layouts
from meshwright.plan.explain import Change, traffic
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.forecast import Forecast, StepInterval
from meshwright.predict.prediction import predict
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.page.bars import axes_table, bar, changes_table, mark, memory_table, parts_of, waterfall
from meshwright.units import GIB


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
    assert drawn.count("<tr>") == 5 and "143.2 ms" in drawn and "129 GB" in drawn


def test_changes_are_cut_with_an_arrow_and_those_without_effect_named() -> None:
    changes = [
        Change(what=what, step_s=1.0, gain_pct=gain, fits=fits)
        for what, gain, fits in (("a", 5.0, True), ("b", 2.0, False), ("c", 0.0, True), ("d", -70.0, True))
    ]
    drawn = changes_table(changes)
    assert "Without effect here: c." in drawn and drawn.count("\u25c2") == 1 and drawn.count("does not fit") == 1


def spans(drawn: str) -> list[tuple[float, float]]:
    """From where to where the bars go, in per cent of the width."""
    return [(float(x), float(x) + float(width)) for x, width in re.findall(r'<rect x="([\d.]+)%" y="1" width="([\d.]+)%"', drawn)]


def change(what: str, gain_pct: float, fits: bool = True) -> Change:
    return Change(what=what, step_s=1.0, gain_pct=gain_pct, fits=fits)


def test_a_bar_goes_from_share_to_share_and_one_of_nothing_is_seen() -> None:
    assert spans(bar([(0.1, 0.35, "red"), (0.5, 0.5, "blue")])) == [(10.0, 35.0), (50.0, 50.5)]
    assert bar([]).count("<rect") == 0
    assert (
        'x1="25.000%"' in mark(0.25, "red")
        and "dasharray" not in mark(0.25, "red")
        and 'stroke-dasharray="3 2"' in mark(0, "red", dash="3 2")
    )


def test_gains_go_right_of_the_line_and_losses_left() -> None:
    drawn = changes_table([change("gain", 10.0), change("loss", -10.0)])
    gain, loss = spans(drawn)
    assert gain == (50.0, 100.0) and loss == (0.0, 50.0)
    assert drawn.count('x1="50.000%"') == 2 and "+10.0" in drawn and "-10.0" in drawn


@pytest.mark.parametrize("gains", [[], [0.0], [-3.0], [-3.0, -80.0], [0.06], [200.0, -200.0]])
def test_changes_that_only_lose_or_do_nothing_are_drawn_inside(gains: list[float]) -> None:
    drawn = changes_table([change(f"<{gain}>", gain) for gain in gains])
    Elements(drawn)
    assert all(-0.001 <= low <= high <= 100.6 for low, high in spans(drawn))
    assert drawn.count("<tr>") == 1 + sum(abs(gain) >= 0.05 for gain in gains)
    assert "&lt;" in drawn or not gains


def test_the_interval_of_a_step_is_drawn_over_it(record_forecast: Forecast) -> None:
    wide = replace(record_forecast, interval=StepInterval(record_forecast.step_s * 0.5, record_forecast.step_s * 4.0))
    for forecast in (record_forecast, wide):
        drawn = waterfall(forecast)
        assert all(0 <= low <= high <= 100.6 for low, high in spans(drawn))
        Elements(drawn)


def test_an_axis_that_stays_on_one_accelerator_says_so(record_forecast: Forecast) -> None:
    first = traffic(record_forecast)[0]
    alone = replace(first, tiers=(), exposed_s=first.traffic_s, behind="<behind>")
    drawn = axes_table([alone])
    assert "one accelerator" in drawn and "<td>nothing</td>" in drawn and "fill-opacity" not in drawn
    hidden = axes_table([replace(alone, exposed_s=0.25 * first.traffic_s)])
    assert "&lt;behind&gt;" in hidden and 'x="25.000%" width="75.000%"' in hidden
    assert axes_table([]).count("<tr>") == 1


def test_stages_that_hold_the_same_share_a_row_and_parts_of_nothing_are_dashes(record_forecast: Forecast) -> None:
    none = {f"{part}_bytes": 0.0 for part in MEMORY_PARTS}
    empty = replace(record_forecast.memory[0], **none, peak_bytes=0.0)
    full = replace(empty, weights_bytes=8 * GIB, peak_bytes=8 * GIB)
    stages = tuple(replace(empty if number == 2 else full, stage=number) for number in range(4))
    drawn = memory_table(replace(record_forecast, memory=stages))
    assert re.findall(r"<tr><td>([^<]+)</td>", drawn) == ["0 \u2013 1", "2", "3"]
    assert drawn.count('<td class="num">8.0</td>') == 2 * 2 and drawn.count('<td class="num">\u2013</td>') == 3 * len(MEMORY_PARTS) - 2
