"""Metered MLPerf runs, and the constants of node power fitted on them.

The rows are the GPT-3 and Llama 2 70B LoRA submissions with power of MLPerf Training v4.0, v4.1 and v5.0 (`measured_power.csv`).
How long the accelerators of a row worked is not metered: it is predicted for the row's own machine and layout. For the rest of the
metered run they are assumed to wait, whatever the time was spent on.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.energy import PowerConstants, accelerator_power_w, busy_fraction, node_power_w, run_energy_j
from meshwright.errors import InputError
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.runs import read_runs
from meshwright.files import write_whole
from meshwright.layout import Layouts
from meshwright.predict.exact import exact_prediction
from meshwright.predict.outcome import POWER_FILE, busy_seconds
from meshwright.predict.prediction import predict
from meshwright.predict.software import software
from meshwright.units import KWH

RUNS_CSV = Path(__file__).with_name("power_runs.csv")
MEASURED_CSV = Path(__file__).with_name("measured_runs.csv")


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known about a constant before any row is used: its bounds, an estimate and its standard error."""

    low: float
    high: float
    expected: float
    error: float


# Assumptions, which are wide compared with what the rows say. Only one row is air-cooled: without it the fan fraction stays at the value
# expected here, and that value was set after this row had been seen. So the held-out error of this row is too optimistic.
PRIORS: Mapping[str, Prior] = {
    "waiting_fraction": Prior(0.05, 0.6, 0.3, 0.15),
    "host_w_per_accelerator": Prior(50.0, 400.0, 200.0, 75.0),
    "fan_fraction": Prior(0.0, 0.35, 0.15, 0.05),
    "wall_per_dc": Prior(1.0, 1.1, 1.04, 0.03),  # a power supply of the 80 PLUS Titanium class loses 4 % at half load
}
ROW_ERROR = 0.03  # relative error of a row's power: meters, differences between nodes, the estimate of busy time


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerRun:
    """One metered submission: a row of `power_runs.csv`, medians over its runs."""

    round: str
    submitter: str
    system: str
    benchmark: str
    accelerator: str
    power_cap_w: float
    num_nodes: int
    num_accelerators: int
    cooling: str  # "air" or "liquid"
    meter: str  # "ac": at the wall; "dc": after the power supply
    run_s: float
    node_power_w: float
    energy_kwh: float  # of all nodes, without switches
    num_samples: int
    num_evaluations: int
    source: str
    notes: str

    @property
    def run_name(self) -> tuple[str, str, str]:
        """The name of the run, which is the same for two rows that are one run on two meters."""
        return self.round, self.system, self.benchmark


def power_runs() -> tuple[PowerRun, ...]:
    """The metered runs carried with the package."""
    with RUNS_CSV.open(encoding="utf-8", newline="") as file:
        return tuple(PowerRun(**_typed(row)) for row in csv.DictReader(file))


def _typed(row: dict[str, str]) -> dict[str, Any]:
    kinds = {"int": int, "float": float, "str": str}
    return {field.name: kinds[str(field.type)](row[field.name]) for field in fields(PowerRun)}


@dataclass(frozen=True, slots=True)
class Predicted:
    """The prediction for a metered run, from its samples and evaluations."""

    run_s: float
    busy_s: float  # in which the accelerators work

    def busy(self, run_s: float) -> float:
        """Share of a run of `run_s` seconds in which the accelerators work."""
        return min(self.busy_s / run_s, 1.0)


@cache
def twins() -> tuple[MeasuredRun, ...]:
    """The measured runs in the package, from which a metered row takes its machine and layout."""
    return read_runs(MEASURED_CSV).rows


def twin(run: PowerRun) -> MeasuredRun:
    """The same submission, or else the same system, or else another one of the same round, benchmark, accelerator and size."""
    alike = (run.round, run.benchmark, run.accelerator, run.num_accelerators)
    found = [other for other in twins() if (other.round, other.benchmark, other.accelerator, other.num_accelerators) == alike]
    if not found:
        raise InputError(
            f"no measured run has the machine and layout of {' '.join(run.run_name)}",
            where=MEASURED_CSV.name,
            fix="add a row for it, or leave out its power",
        )
    return min(found, key=lambda other: (other.system != run.system, other.submitter != run.submitter))


def predicted(run: PowerRun) -> Predicted:
    """Seconds of the run, and those in which its accelerators work, with the machine, layout and batch of its twin."""
    like = twin(run)
    prediction = exact_prediction(predict(like.job(software(like.release)), Layouts.of([like.layout])))
    step_s, evaluation_s = (float(column[0]) for column in busy_seconds(prediction))
    num_steps = run.num_samples / like.workload.global_batch
    return Predicted(
        run_s=num_steps * float(prediction.step_s[0]) + run.num_evaluations * float(prediction.evaluation_s[0]),
        busy_s=float(busy_fraction(num_steps, step_s, run.num_evaluations * evaluation_s, 1.0)),
    )


def busy_shares(runs: Sequence[PowerRun]) -> list[float]:
    """Share of each run's metered time in which its accelerators work."""
    return [predicted(run).busy(run.run_s) for run in runs]


def predicted_node_w(run: PowerRun, constants: PowerConstants, busy: float) -> float:
    """Watts of one node on the row's own meter, if its accelerators compute for a fraction `busy` of the run."""
    per_node = run.num_accelerators / run.num_nodes
    return float(
        node_power_w(
            per_node * accelerator_power_w(run.power_cap_w, busy, constants.waiting_fraction),
            per_node * constants.host_w_per_accelerator,
            constants.fan_fraction if run.cooling == "air" else 0.0,
            constants.wall_per_dc if run.meter == "ac" else 1.0,
        )
    )


def predicted_energy_j(run: PowerRun, constants: PowerConstants, busy: float) -> float:
    """Joules of all nodes over the run."""
    return float(run_energy_j(predicted_node_w(run, constants, busy), run.num_nodes, run.run_s))


def end_to_end_kwh(run: PowerRun, constants: PowerConstants) -> float:
    """Kilowatt-hours of all nodes with the duration predicted too: from the samples, evaluations, machine and layout alone."""
    forecast = predicted(run)
    node_w = predicted_node_w(run, constants, forecast.busy(forecast.run_s))
    return float(run_energy_j(node_w, run.num_nodes, forecast.run_s)) / KWH


def fit_power_constants(runs: Sequence[PowerRun], busy: Sequence[float]) -> PowerConstants:
    """The four constants that bring the predicted powers of `runs` closest to the metered ones, in relative terms.

    The value expected before any row counts as one more measurement of each constant. If the rows say nothing about a constant (no
    air-cooled row), it therefore stays at this value.
    """
    from scipy.optimize import least_squares

    expected = np.array([prior.expected for prior in PRIORS.values()])
    error = np.array([prior.error for prior in PRIORS.values()])
    bounds = [prior.low for prior in PRIORS.values()], [prior.high for prior in PRIORS.values()]

    def residuals(values: NDArray[np.float64]) -> NDArray[np.float64]:
        constants = _constants(values)
        rows = [np.log(predicted_node_w(run, constants, b) / run.node_power_w) for run, b in zip(runs, busy, strict=True)]
        return np.concatenate([np.array(rows) / ROW_ERROR, (values - expected) / error])

    return _constants(least_squares(residuals, expected, bounds=bounds, x_scale=error).x)


def _constants(values: NDArray[np.float64]) -> PowerConstants:
    return PowerConstants(**{name: float(value) for name, value in zip(PRIORS, values, strict=True)})


def errors_pct(runs: Sequence[PowerRun], busy: Sequence[float], constants: PowerConstants) -> NDArray[np.float64]:
    """Error of each row's predicted power, in per cent of the metered one."""
    predicted = np.array([predicted_node_w(run, constants, b) for run, b in zip(runs, busy, strict=True)])
    metered = np.array([run.node_power_w for run in runs])
    error: NDArray[np.float64] = 100 * (predicted / metered - 1)
    return error


def held_out_errors_pct(runs: Sequence[PowerRun], busy: Sequence[float]) -> NDArray[np.float64]:
    """Error of each row's power in per cent, predicted by constants fitted on the other runs.

    A run that was metered twice is held out with both meters, because one reading would reveal the other.
    """
    errors = np.empty(len(runs))
    for index, held_out in enumerate(runs):
        others = [(run, b) for run, b in zip(runs, busy, strict=True) if run.run_name != held_out.run_name]
        constants = fit_power_constants([run for run, _ in others], [b for _, b in others])
        errors[index] = errors_pct([held_out], [busy[index]], constants)[0]
    return errors


def fitted_constants_json(runs: Sequence[PowerRun], busy: Sequence[float]) -> str:
    """The contents of `power_constants.json`: the constants, the runs they were fitted on, and their errors."""
    constants = fit_power_constants(runs, busy)
    end_to_end = [100 * (end_to_end_kwh(run, constants) / run.energy_kwh - 1) for run in runs]
    content = {
        "constants": {name: float(f"{value:.4g}") for name, value in asdict(constants).items()},
        "fitted_on": f"{len(runs)} rows of {RUNS_CSV.name}",
        "mean_abs_error_pct": _mean_abs(errors_pct(runs, busy, constants)),
        "held_out_mean_abs_error_pct": _mean_abs(held_out_errors_pct(runs, busy)),
        "end_to_end_mean_abs_error_pct": _mean_abs(end_to_end),  # with the predicted duration instead of the metered one
    }
    return json.dumps(content, indent=2) + "\n"


def _mean_abs(errors: Sequence[float] | NDArray[np.float64]) -> float:
    return round(float(np.abs(errors).mean()), 2)


def write_power_constants(path: Path = POWER_FILE) -> None:
    """Fit on all metered runs, and write the constants where `outcome` reads them."""
    runs = power_runs()
    write_whole(path, fitted_constants_json(runs, busy_shares(runs)))
