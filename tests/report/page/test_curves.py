"""Curves over accelerator counts: points inside the frame, the ideal beside them, notes and names escaped."""

from __future__ import annotations

import re

from meshwright.report.page.curves import ParetoPoint, ScalingPoint, pareto_chart, scaling_chart


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
