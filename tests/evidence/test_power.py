from __future__ import annotations

import json
from dataclasses import astuple, replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.evidence.power import (
    PRIORS,
    Predicted,
    busy_shares,
    end_to_end_kwh,
    errors_pct,
    fit_power_constants,
    fitted_constants_json,
    held_out_errors_pct,
    power_runs,
    predicted,
    predicted_energy_j,
    predicted_node_w,
    twin,
)
from meshwright.predict.outcome import POWER_FILE, power_constants
from meshwright.units import KWH

RUNS = power_runs()
BUSY = busy_shares(RUNS)


def test_the_rows_are_whole() -> None:
    assert len(RUNS) == 10
    for run in RUNS:
        assert run.energy_kwh == pytest.approx(run.node_power_w * run.num_nodes * run.run_s / KWH, rel=0.01)
        assert run.source and run.cooling in ("air", "liquid") and run.meter in ("ac", "dc")


def test_every_row_finds_its_machine_and_layout() -> None:
    found = {(run.submitter, run.system, run.benchmark): twin(run) for run in RUNS}
    for (_, system, benchmark), like in found.items():
        assert like.benchmark == benchmark
        assert like.system == system or like.system == "64xBM.GPU.H100.8"  # Dell's metered run has no row of its own: one of equal size
    assert found["smc-ac-power", "64xSMC-H100-SXM-80GB", "llama2_70b_lora"].submitter == "smc-ac-power"
    with pytest.raises(InputError, match="no measured run has the machine"):
        twin(replace(RUNS[0], num_accelerators=7))


def test_no_accelerator_is_busy_for_more_than_the_run() -> None:
    assert Predicted(run_s=80.0, busy_s=90.0).busy(120.0) == pytest.approx(0.75)
    assert Predicted(run_s=80.0, busy_s=90.0).busy(80.0) == 1
    assert all(0.4 < busy <= 1 for busy in BUSY)
    assert all(0 < run.busy_s < run.run_s for run in map(predicted, RUNS))


def test_metered_runs_are_met_within_two_per_cent() -> None:
    errors = errors_pct(RUNS, BUSY, power_constants())
    assert np.abs(errors).mean() < 2 and np.abs(errors).max() < 5


def test_held_out_runs_are_met_within_ten_per_cent() -> None:
    errors = held_out_errors_pct(RUNS, BUSY)
    assert np.abs(errors).mean() < 10
    assert np.abs(errors).max() < 10  # the one air-cooled row, which then rests on what is expected of fans


def test_the_512_gpu_gpt3_run_takes_415_kwh() -> None:
    run, busy = RUNS[0], BUSY[0]
    assert (run.benchmark, run.num_accelerators, run.meter) == ("gpt3", 512, "ac")
    assert predicted_energy_j(run, power_constants(), busy) / KWH == pytest.approx(415.4, rel=0.05)
    assert end_to_end_kwh(run, power_constants()) == pytest.approx(415.4, rel=0.05)  # and with the duration predicted too


def test_held_out_the_gpt3_run_is_met_within_five_per_cent() -> None:
    others = [(run, busy) for run, busy in zip(RUNS, BUSY, strict=True) if run.benchmark != "gpt3"]
    constants = fit_power_constants([run for run, _ in others], [busy for _, busy in others])
    assert end_to_end_kwh(RUNS[0], constants) == pytest.approx(415.4, rel=0.05)


def test_the_carried_constants_are_those_of_the_fit() -> None:
    # numbers of another machine may differ in the last digits, so may those of predictor constants fitted anew
    carried, fitted = (json.loads(text) for text in (POWER_FILE.read_text(encoding="utf-8"), fitted_constants_json(RUNS, BUSY)))
    assert carried.pop("constants") == pytest.approx(fitted.pop("constants"), rel=0.02)
    assert carried.pop("fitted_on") == fitted.pop("fitted_on")
    assert carried == pytest.approx(fitted, abs=0.5)  # errors in per cent


def test_the_fit_recovers_constants_it_is_shown() -> None:
    truth = replace(power_constants(), waiting_fraction=0.25, host_w_per_accelerator=230.0)
    made = [replace(run, node_power_w=predicted_node_w(run, truth, busy)) for run, busy in zip(RUNS, BUSY, strict=True)]
    assert astuple(fit_power_constants(made, BUSY)) == pytest.approx(astuple(truth), rel=0.1)  # what is expected beforehand pulls a little


def test_four_constants_are_fitted_and_none_lies_at_its_bound() -> None:
    assert len(PRIORS) == 4
    for name, prior in PRIORS.items():
        assert prior.low < getattr(power_constants(), name) < prior.high
