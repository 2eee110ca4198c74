from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest

from meshwright.evidence.power import (
    CONSTANTS_JSON,
    PRIORS,
    errors_pct,
    fit_power_constants,
    fitted_constants_json,
    held_out_errors_pct,
    power_constants,
    power_runs,
    predicted_energy_j,
    predicted_node_w,
)
from meshwright.units import KWH

RUNS = power_runs()
BUSY = [run.busy for run in RUNS]


def test_the_rows_are_whole() -> None:
    assert len(RUNS) == 10
    for run in RUNS:
        assert run.energy_kwh == pytest.approx(run.node_power_w * run.num_nodes * run.run_s / KWH, rel=0.01)
        assert run.source and run.cooling in ("air", "liquid") and run.meter in ("ac", "dc")


def test_the_busy_fraction_of_a_row_matches_a_hand_worked_case() -> None:
    # 3,072 samples of 3.71368 accelerator-seconds and 5 evaluations of 8 x 37.345, on 64 accelerators for 318.4 s
    run = next(run for run in RUNS if run.system.startswith("8xSMC"))
    assert run.busy == pytest.approx((3072 * 3.71368 + 5 * 8 * 37.345) / (64 * 318.4))
    assert all(0.4 < busy <= 1 for busy in BUSY)


def test_metered_runs_are_met_within_two_per_cent() -> None:
    errors = errors_pct(RUNS, BUSY, power_constants())
    assert np.abs(errors).mean() < 2 and np.abs(errors).max() < 4


def test_held_out_runs_are_met_within_ten_per_cent() -> None:
    errors = held_out_errors_pct(RUNS, BUSY)
    assert np.abs(errors).mean() < 10
    assert np.abs(errors).max() < 10  # the one air-cooled row, which then rests on what is expected of fans


def test_the_512_gpu_gpt3_run_takes_415_kwh() -> None:
    run, busy = RUNS[0], BUSY[0]
    assert (run.benchmark, run.num_accelerators, run.meter) == ("gpt3", 512, "ac")
    assert predicted_energy_j(run, power_constants(), busy) / KWH == pytest.approx(415.4, rel=0.05)


def test_the_carried_constants_are_those_of_the_fit() -> None:
    assert CONSTANTS_JSON.read_text(encoding="utf-8") == fitted_constants_json(RUNS, BUSY)


def test_the_fit_recovers_constants_it_is_shown() -> None:
    truth = replace(power_constants(), waiting_fraction=0.25, host_w_per_accelerator=230.0)
    made = [replace(run, node_power_w=predicted_node_w(run, truth, busy)) for run, busy in zip(RUNS, BUSY, strict=True)]
    assert astuple(fit_power_constants(made, BUSY)) == pytest.approx(astuple(truth), rel=0.1)  # what is expected beforehand pulls a little


def test_four_constants_are_fitted_and_none_lies_at_its_bound() -> None:
    assert len(PRIORS) == 4
    for name, prior in PRIORS.items():
        assert prior.low < getattr(power_constants(), name) < prior.high
