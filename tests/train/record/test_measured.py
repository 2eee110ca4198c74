"""Spans of a timer become the parts of a step, which add up to it."""

from __future__ import annotations

import numpy as np
import pytest
from on_exchange import exchanged_on_ranks
from ranks import Pools

from meshwright.layout import Layout
from meshwright.record.entries import PARTS
from meshwright.train.health.slow_links import link_columns
from meshwright.train.record.measured import busy_s, groups_of, links_of, of_busiest_stage, parts_of


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
        assert table.shape == (2, len(PARTS) + 1)  # and the time of the exchange between replicas
        assert table[:, 0].tolist() == [0.0, 1.0]
        assert table[:, 1].tolist() == [0.5, 0.5]


def test_what_a_rank_tells_about_its_links() -> None:
    layout = Layout(tp=2, pp=2, dp=2)
    trip = {"away": [3.0], "held": [], "wait_after": [0.5], "wait_before": []}
    found = links_of({"exposed_tp": [0.1, 0.9, 0.2, 0.8, 0.3], "exposed_dp": [0.5, 0.25], **trip}, layout)
    assert tuple(found) == link_columns(layout)
    assert found["link_tp"] == pytest.approx(5 * 0.2)  # as if each of the five had taken as long as those of the lower quarter
    assert (found["link_dp"], found["pp_away"], found["pp_held"], found["pp_wait_after"]) == (0.75, 3.0, 0.0, 0.5)
    assert links_of({}, Layout()) == {}
