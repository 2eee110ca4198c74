"""Charts show what the numbers are: every rank once, areas that are times, bars that add up."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from meshwright.layout import Layout, Layouts
from meshwright.plan.explain import Change, traffic
from meshwright.plan.plan import Plan
from meshwright.plan.trace import LaidOut
from meshwright.predict import software as sw
from meshwright.predict.footprint import PARTS as MEMORY_PARTS
from meshwright.predict.forecast import Forecast
from meshwright.predict.prediction import predict
from meshwright.record.entries import PART_NAMES, PARTS
from meshwright.report.page.assumptions import chosen, evidence, fitted
from meshwright.report.page.axes import log_ticks, padded, ticks, time_ticks
from meshwright.report.page.bars import axes_table, changes_table, memory_table, parts_of, waterfall
from meshwright.report.page.curves import ParetoPoint, ScalingPoint, pareto_chart, scaling_chart
from meshwright.report.page.rack import Rack, brackets, rack_picture
from meshwright.report.page.timeline import LABELS, WIDTH, _shares, timeline_picture


def test_a_rack_of_the_record_machine_is_one_replica_with_eight_spares(record: Plan) -> None:
    drawn = rack_picture(record)
    assert sorted(map(int, re.findall(r"<title>rank (\d+):", drawn))) == list(range(64))
    assert drawn.count(">spare</text>") == 8
    assert drawn.count(">t0 c0</text>") == 8  # one a stage
    assert "One rack is one replica" in drawn


def test_axes_are_bracketed_where_they_run_straight(record: Plan) -> None:
    found = {bracket.axis: (bracket.num_columns, bracket.num_rows) for bracket in brackets(Rack.of(record))}
    assert found == {"tp": (4, 0), "cp": (0, 2), "pp": (0, 16)}  # a tray, two trays, sixteen trays


def test_a_rank_order_is_drawn_as_it_is(record: Plan) -> None:
    turned = replace(record, layout=replace(record.layout, order=("pp", "tp", "cp", "dp")))
    assert "<title>rank 1: tp 0, cp 0, pp 1, dp 0</title>" in rack_picture(turned)


def test_without_a_pipeline_replicas_give_the_colours(workstation: Plan) -> None:
    assert Rack.of(workstation).coloured == "dp"
    assert rack_picture(workstation).count("<title>rank ") == 8


def test_a_replica_over_many_nodes_shows_them_all(many_operations: Plan) -> None:
    rack = Rack.of(many_operations)
    assert rack.domains == tuple(range(16))
    assert rack.seen == tuple(range(16))
    assert "Drawn: 16 of 128 nodes" in rack_picture(many_operations)


def test_stages_far_apart_are_found(record: Plan) -> None:
    layout = replace(record.layout, order=("tp", "cp", "dp", "pp"))
    rack = Rack.of(replace(record, layout=layout))
    assert rack.domains[0] == 0 and {layout.coordinate(d * 64)["pp"] for d in rack.domains} == set(range(len(rack.domains)))


def test_one_accelerator_is_a_picture_too(workstation: Plan) -> None:
    alone = replace(workstation, cluster=workstation.cluster.resized(1), layout=Layout())
    assert rack_picture(alone).count("<title>rank ") == 1


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


@pytest.mark.parametrize("low, high", [(0.0, 1.254), (0.0, 105.0), (3.0, 3.4), (1e-6, 2e-6)])
def test_ticks_are_round_few_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 8)
    assert 3 <= len(found) <= 10 and low <= found[0] + 1e-12 and found[-1] <= high + 1e-12


def test_ticks_of_logarithmic_axes() -> None:
    assert log_ticks(90, 1200) == [100, 200, 500, 1000]
    assert log_ticks(1, 1e6) == [1, 10, 100, 1000, 1e4, 1e5, 1e6]
    assert time_ticks(50, 4000) == [60, 120, 300, 600, 1200, 1800, 3600]
    low, high = padded([5.0])
    assert low < 5.0 < high


def test_every_assumption_of_the_software_is_listed() -> None:
    numbers = {name for name, value in vars(sw).items() if name.isupper() and isinstance(value, int | float | dict | tuple)}
    assert numbers - {"ASSUMED", "BLACKWELL", "CLASSES", "FITTED", "GENERATIONS", "RELEASES"} == set(sw.ASSUMED)
    assert all(entry.what and entry.value and entry.origin for entry in chosen())


def test_every_fitted_constant_is_listed_with_what_was_expected(record_forecast: Forecast) -> None:
    listed = fitted(record_forecast)
    constants = [name for name in sw.FITTED if not name.startswith("release ")]
    assert {sw.FITTED[name].meaning for name in constants} <= {entry.what for entry in listed}
    assert next(entry for entry in listed if entry.what == "one round of a ring").origin == "2 us \u00b1 1 us"


def test_the_evidence_of_the_interval_is_reported(record_forecast: Forecast, workstation_forecast: Forecast) -> None:
    assert "inside the evidence" in evidence(record_forecast)
    assert "far from the evidence" in evidence(workstation_forecast)
    assert np.isfinite(workstation_forecast.mfu)
