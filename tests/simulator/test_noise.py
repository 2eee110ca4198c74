"""What disturbs a step: how draws are distributed, and the constants the package carries."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.simulator.noise import (
    MEANING,
    QUIET,
    Noise,
    drift_path,
    group_jitter,
    latest_rank,
    mean_stall_s,
    share_beyond,
    stalls,
)
from meshwright.simulator.noise_classes import CLASSES, class_named, class_of_job, fitted_noise, usual_noise


def test_every_class_has_every_constant_fitted():
    assert set(fitted_noise().classes) == set(CLASSES)
    assert set(MEANING) == {f.name for f in fields(Noise)}
    for noise in fitted_noise().classes.values():
        assert all(getattr(noise, f.name) > 0 for f in fields(Noise))


@pytest.mark.parametrize(
    "architecture, number_format, release, name",
    [
        ("hopper", "fp8", "v3.0", "first"),
        ("hopper", "fp8", "v4.1", "early"),
        ("blackwell", "fp8", "v4.1", "early"),
        ("hopper", "bf16", "v5.0", "hopper"),
        ("hopper", "fp8", "torchtitan-2025.06", "hopper"),
        ("blackwell", "fp8", "v5.1", "blackwell"),
        ("blackwell-ultra", "bf16", "nemo-26.04", "blackwell"),
        ("blackwell-ultra", "fp4", "v6.0", "blackwell-fp4"),
        ("cdna4", "fp4", "v5.1", "common"),
        ("ampere", "bf16", "v6.0", "common"),
    ],
)
def test_software_chips_and_number_format_decide_the_class(architecture, number_format, release, name):
    assert class_named(architecture, number_format, release) == name


def test_a_job_has_the_noise_of_its_class():
    job = Job("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b")
    piped, whole = Layout(tp=4, cp=2, pp=8, dp=128), Layout(tp=64, dp=128)
    assert (class_of_job(job, piped), class_of_job(job, whole)) == ("blackwell-fp4", "unpipelined")
    assert usual_noise(job, piped) == fitted_noise().of("blackwell-fp4") != fitted_noise().of("blackwell")
    assert usual_noise(job, whole) == fitted_noise().of("unpipelined")


def test_a_run_draws_its_level_and_its_rate_of_stalls_from_those_of_its_kind():
    kind = replace(QUIET, jitter=1e-3, delay=1e-4, drift=1e-2, level_spread=0.4, stalls_per_hour=1e-3, stall_spread=2.0, stall_share=0.2)
    runs = [kind.of_one_run(np.random.default_rng(seed)) for seed in range(4000)]
    levels = np.log([run.drift / kind.drift for run in runs])
    assert (np.mean(levels), np.std(levels)) == (pytest.approx(0.0, abs=0.02), pytest.approx(0.4, rel=0.03))
    assert all(run.jitter / kind.jitter == pytest.approx(run.delay / kind.delay) for run in runs)
    rates = np.array([run.stalls_per_hour for run in runs])
    assert (rates.mean(), rates.var() / rates.mean() ** 2) == (pytest.approx(1e-3, rel=0.08), pytest.approx(2.0, rel=0.2))
    typical = kind.of_typical_run()
    assert typical.of_one_run(np.random.default_rng(0)) == typical and typical.drift == kind.drift
    assert QUIET.of_one_run(np.random.default_rng(0)) == QUIET


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
    noise = replace(QUIET, stalls_per_hour=0.36, stall_share=0.2)
    added = stalls(100_000, 100, 10.0, noise, rng)  # 0.1 a step, each a tenth of a step and 0.2 more
    assert added.mean() == pytest.approx(0.3, rel=0.03) == mean_stall_s(100, 10.0, noise)
    assert added[added > 0].min() >= 1.0


def test_the_share_of_long_steps_is_that_of_the_draws():
    layout, rng = Layout(tp=4, pp=2, dp=16), np.random.default_rng(0)
    noise = replace(QUIET, delay=2e-3, stalls_per_hour=0.03, stall_share=0.15)
    drawn = (
        1
        + stalls(200_000, layout.num_ranks, 10.0, noise, rng) / 10
        + noise.delay * latest_rank(layout, (200_000, layout.dp), rng).max(axis=1)
    )
    for share in (0.1, 0.2, 0.5):
        assert share_beyond(share, layout, 10.0, noise) == pytest.approx(np.mean(drawn > (1 + share) * np.median(drawn)), rel=0.12)
    assert share_beyond(0.2, layout, 10.0, QUIET) == 0.0


def test_a_negative_constant_and_a_negative_factor_are_refused():
    with pytest.raises(InputError, match="jitter is -1"):
        Noise(**{f.name: 0.0 for f in fields(Noise)} | {"jitter": -1.0})
    with pytest.raises(InputError, match="jitter is -1"):
        QUIET.scaled(-1.0)
