"""Spans of a timer become the parts of a step, which add up to it."""

from __future__ import annotations

import numpy as np
import pytest
from on_exchange import exchanged_on_ranks
from ranks import Pools

from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.record.measured import busy_s, groups_of, of_busiest_stage, parts_of


def test_parts_add_up() -> None:
    spans = {"exposed_tp": [0.1, 0.2], "optimizer": [0.05], "data": [0.01], "wait_end": [0.04]}
    parts = parts_of(spans, Layout(tp=2), 1.0)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["compute"] == pytest.approx(0.6)
    assert (parts["exposed_tp"], parts["exposed_dp"]) == (pytest.approx(0.3), pytest.approx(0.04))


def test_waiting_for_messages_is_bubble_but_for_the_shortest() -> None:
    parts = parts_of({"wait_pp": [0.01, 0.01, 0.21], "wait_end": [0.1]}, Layout(pp=2), 1.0)
    assert parts["exposed_pp"] == pytest.approx(0.03)
    assert parts["bubble"] == pytest.approx(0.2 + 0.1)


def test_no_part_is_below_nothing() -> None:
    assert parts_of({"optimizer": [2.0]}, Layout(), 1.0)["compute"] == 0.0


def test_the_busiest_stage_speaks_for_the_step() -> None:
    layout = Layout(pp=2, dp=2)
    everyones = np.zeros((4, len(PARTS)))
    everyones[:, 0] = [1.0, 2.0, 3.0, 4.0]
    stages = groups_of(layout)
    assert sorted(stages) == [0, 0, 1, 1]
    means = [everyones[np.array(stages) == stage, 0].mean() for stage in (0, 1)]
    assert of_busiest_stage(everyones, layout)["compute"] == max(means)
    everyones[:, PARTS.index("optimizer")] = 1.0
    assert busy_s(everyones).tolist() == [2.0, 3.0, 4.0, 5.0]


def test_every_rank_knows_everyones_parts(pools: Pools) -> None:
    for table in pools.of(2).run(exchanged_on_ranks):
        assert table.shape == (2, len(PARTS))
        assert table[:, 0].tolist() == [0.0, 1.0]
        assert table[:, 1].tolist() == [0.5, 0.5]
