"""The joint fit: it recovers constants it is shown, holds on to what is expected, and leaves out what it should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.evidence.fit import LATER, Rows, fit, leave_family_out
from meshwright.evidence.refit import MEASURED_CSV, pretraining
from meshwright.evidence.runs import read_runs
from meshwright.predict.software import FITTED, RELEASES, fitted_values

RUNS = pretraining(read_runs(MEASURED_CSV).rows)
ROWS = Rows.of(RUNS)
EXPECTED = {name: one.expected for name, one in FITTED.items()}


def test_there_are_at_most_24_constants_and_each_lies_within_its_bounds() -> None:
    values = fitted_values()
    assert len(FITTED) <= 24
    for name, one in FITTED.items():
        value = values.releases[name.removeprefix("release ")] if name.startswith("release ") else getattr(values.constants, name)
        assert one.low < value < one.high, name
        assert one.low <= one.expected <= one.high and one.meaning and one.unit


def test_rows_keep_their_order_and_can_be_picked() -> None:
    mask = np.arange(len(RUNS)) % 3 == 0
    assert ROWS.take(mask).log_errors(EXPECTED) == pytest.approx(ROWS.log_errors(EXPECTED)[mask])


def test_a_slower_release_takes_longer() -> None:
    slower = EXPECTED | {"release v5.0": 0.1}
    change = ROWS.log_errors(slower) - ROWS.log_errors(EXPECTED)
    is_v5 = ROWS.release == RELEASES.index("v5.0")
    assert (change[is_v5] > 0.05).all() and (change[is_v5] < 0.1).all()
    assert change[~is_v5] == pytest.approx(0)


def test_the_fit_recovers_constants_it_is_shown() -> None:
    truth = {name: one.expected + 0.3 * one.spread for name, one in FITTED.items() if name != LATER}
    made = replace(ROWS, measured_s=ROWS.measured_s * np.exp(ROWS.log_errors(truth)))
    found = fit(made)
    assert np.abs(made.log_errors(found)).mean() < 0.005  # what is expected beforehand pulls a little
    assert found["hopper_fp8_pj"] == pytest.approx(truth["hopper_fp8_pj"], rel=0.05)


def test_without_rows_that_say_otherwise_constants_stay_where_they_are_expected() -> None:
    hopper = ROWS.take(np.array([run.cluster.accelerator.architecture == "hopper" for run in RUNS]))
    found = fit(hopper)
    for name in ("blackwell_fp8_pj", "blackwell_fp4_pj", "blackwell_attention", "blackwell_contention"):
        assert found[name] == pytest.approx(FITTED[name].expected, rel=1e-3)


def test_leaving_a_family_out_does_not_let_its_own_times_in() -> None:
    runs = [run for run in RUNS if run.release in ("v3.0", "v3.1", "v4.0")]
    family = runs[0].family
    slower = [replace(run, measured_s=run.measured_s * 1.5) if run.family == family else run for run in runs]
    moved = leave_family_out(slower, EXPECTED) - leave_family_out(runs, EXPECTED)
    assert moved[[run.family == family for run in runs]] == pytest.approx(-np.log(1.5))
