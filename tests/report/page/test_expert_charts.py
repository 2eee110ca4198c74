"""Loads of experts as drawings: every cell has its shade, many experts and steps are averaged, and a dense run has no such part."""

from __future__ import annotations

import re

import numpy as np

from meshwright.record.entries import StepRecord
from meshwright.report.page.expert_charts import MAX_COLUMNS, MAX_LAYERS, MAX_ROWS, ROW_HEIGHT, expert_part, heat_map


def record(step: int, loads: tuple[tuple[float, ...], ...] = (), **extra: float) -> StepRecord:
    return StepRecord(
        step=step, samples=8 * step, loss=3.0, grad_norm=1.0, step_s=0.5, parts_s={"exposed_ep": 0.1}, extra=extra, expert_loads=loads
    )


def routed(step: int, loads: tuple[tuple[float, ...], ...]) -> StepRecord:
    return record(step, loads, router_entropy=1.2, balance_loss=1.01, expert_peak=2.5, expert_peak_mean=1.7, num_dropped_visits=3.0)


def test_a_run_without_experts_has_no_such_part() -> None:
    assert expert_part([record(1), record(2)]) is None


def test_the_part_has_maps_lines_and_numbers() -> None:
    page = expert_part([routed(step, ((0.0, 2.5, 0.5), (1.0, 1.0, 1.0))) for step in range(1, 9)])
    assert page is not None
    assert page.count('role="img"') == 2 + 3
    for words in ("dropped visits, whole run", "24", "entropy of the router", "balance loss", "20.0 %", "no tokens", "step 8"):
        assert words in page


def test_only_the_fullest_layers_are_drawn() -> None:
    loads = tuple((1.0 + layer, 1.0 - layer / 10) for layer in range(6))
    page = expert_part([routed(1, loads), routed(2, loads)])
    assert page is not None
    assert re.findall(r"Layer (\d) of", page) == ["4", "5", "6"] and len(re.findall(r"Layer (\d) of", page)) == MAX_LAYERS
    assert "Of 6 layers with experts" in page


def test_steps_without_loads_and_of_other_shapes_do_not_matter() -> None:
    page = expert_part([routed(1, ()), routed(2, ((1.0, 1.0),)), routed(3, ((0.5, 1.0, 1.5),)), routed(4, ((0.5, 1.0, 1.5),))])
    assert page is not None and "Loads of 3 experts over steps 3 to 4" in page


def test_a_cell_for_each_expert_and_step_or_their_means() -> None:
    small = heat_map(np.array([[0.0, 3.0], [1.0, 3.0]]), [1, 2])
    assert small.count("<path") == 3  # no tokens, near the mean, more
    assert small.count("M") == 3  # the second expert is one rectangle
    large = heat_map(np.ones((500, 300)), list(range(500)))
    assert large.count("M") == MAX_ROWS  # rows of equal cells, each one rectangle
    assert f'viewBox="0 0 600 {ROW_HEIGHT * MAX_ROWS + 18:g}"' in large
    assert len(heat_map(np.random.default_rng(0).random((500, 300)) * 3, list(range(500)))) < 60 * MAX_ROWS * MAX_COLUMNS
