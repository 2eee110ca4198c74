"""The fit of the noise: it finds what was put in, and one log is simulated as it was logged."""

from __future__ import annotations

import json

import pytest

from meshwright.simulator.logs import step_logs
from meshwright.simulator.noise import fitted_noise, noise_of
from meshwright.simulator.noise_fit import Checked, NoiseFit, json_text, simulated_as


@pytest.fixture(scope="module")
def few():
    return [log for log in step_logs() if log.run.round in ("v3.1", "v6.0") and log.run.num_accelerators > 4000]


def test_a_log_is_simulated_with_as_many_steps_and_first_steps(few):
    log = few[-1]
    times = simulated_as(log, fitted_noise(), seed=1)
    assert len(times.seconds) == len(log.times.seconds)
    assert (times.is_first == log.times.is_first).all()
    assert times.median_s == pytest.approx(log.times.median_s, rel=0.05)
    checked = Checked(log, fitted_noise(), (times,))
    assert checked.median_error == pytest.approx(times.median_s / log.times.median_s - 1)
    assert checked.is_near == (2 / 3 <= checked.spread_ratio <= 1.5)


def test_the_fit_leaves_out_what_it_is_reported_to(few):
    pytest.importorskip("scipy")
    fit = NoiseFit(few)
    whole, without = fit.fitted(), fit.fitted(left_out=0)
    assert whole != without
    assert whole.delay == pytest.approx(fitted_noise().delay, rel=0.6)
    assert fit.fitted(left_out=0) == without


def test_constants_survive_their_file():
    text = json_text(fitted_noise(), "a test", "2026-11-15")
    assert noise_of(json.loads(text)) == fitted_noise()
