"""What disturbs a step: how draws are distributed, and the constants the package carries."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.layout import Layout
from meshwright.simulator.noise import MEANING, QUIET, Noise, drift_path, drift_scale, fitted_noise, group_jitter, latest_rank, stalls


def test_there_are_no_more_than_eight_constants_and_all_are_fitted():
    assert len(fields(Noise)) <= 8
    assert set(MEANING) == {f.name for f in fields(Noise)}
    assert all(getattr(fitted_noise(), f.name) > 0 for f in fields(Noise))


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 16])
def test_the_jitter_of_a_group_is_that_of_its_slowest_rank(num_ranks):
    drawn = group_jitter(num_ranks, 200_000, np.random.default_rng(0))
    slowest = np.random.default_rng(1).standard_exponential((200_000, num_ranks)).max(axis=1)
    at = [5, 25, 50, 75, 95, 99]
    assert np.percentile(drawn, at) == pytest.approx(np.percentile(slowest, at), rel=0.03, abs=0.005)
    assert drawn.mean() == pytest.approx(sum(1 / k for k in range(1, num_ranks + 1)), rel=0.01)  # harmonic numbers


def test_the_delay_of_a_replica_is_the_largest_of_its_ranks_drawn_one_by_one():
    layout = Layout(tp=2, cp=1, pp=4, dp=1)
    at_once = latest_rank(layout, (100_000, 1), np.random.default_rng(0))
    each = (1 - np.random.default_rng(1).random((100_000, 8))) ** -0.5 / np.sqrt(8)
    at = [10, 50, 90, 99]
    assert np.percentile(at_once, at) == pytest.approx(np.percentile(each.max(axis=1), at), rel=0.04)


def test_the_latest_of_many_replicas_grows_with_the_root_of_their_number():
    rng, layout = np.random.default_rng(0), Layout(tp=4, pp=8)
    few, many = (np.median(latest_rank(layout, (4000, n), rng).max(axis=1)) for n in (16, 256))
    assert many / few == pytest.approx(4.0, rel=0.05)


def test_drift_forgets_itself_and_stalls_come_as_often_as_they_should():
    rng = np.random.default_rng(0)
    path = drift_path(50_000, rng)
    assert path.min() >= 0
    assert np.corrcoef(path[:-1], path[1:])[0, 1] > 0.8
    assert abs(np.corrcoef(path[:-200], path[200:])[0, 1]) < 0.05
    noise = Noise(**{f.name: 0.0 for f in fields(Noise)} | {"stalls_per_hour": 0.36, "stall_s": 2.0})
    added = stalls(100_000, 100, 10.0, noise, rng)  # 0.1 a step
    assert added.mean() == pytest.approx(0.2, rel=0.03)


def test_machines_drift_where_traffic_hides_behind_products_that_context_parallelism_cuts():
    base = Layout(tp=4, cp=2, pp=8, dp=2, overlap_tp=True)
    assert drift_scale(base, 10.0, 0.01) == pytest.approx(0.01)
    assert drift_scale(base, 40.0, 0.01) == pytest.approx(0.005)
    assert drift_scale(Layout(tp=4, cp=2, pp=8, dp=2), 10.0, 0.01) == 0
    assert drift_scale(Layout(tp=4, pp=8, dp=2, overlap_tp=True), 10.0, 0.01) == 0


def test_a_negative_constant_and_a_negative_factor_are_refused():
    with pytest.raises(InputError, match="jitter is -1"):
        Noise(**{f.name: 0.0 for f in fields(Noise)} | {"jitter": -1.0})
    with pytest.raises(InputError, match="jitter is -1"):
        QUIET.scaled(-1.0)
