"""Metered MLPerf runs, and the constants of node power fitted on them.

The rows are the GPT-3 and Llama 2 70B LoRA submissions with power of MLPerf Training v4.0, v4.1 and v5.0 (`measured_power.csv`).
How long the accelerators of a row computed is not metered. It is estimated from a reference: NVIDIA's own run of the same benchmark,
round and accelerator on as few accelerators as it submitted, where little is left to wait for. What a sample and an evaluation take
there, in accelerator-seconds, is taken for pure compute; a row is busy for its share of that, and waits for the rest.
A predictor that knows a row's compute seconds can pass its own fractions instead.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.energy import PowerConstants, accelerator_power_w, busy_fraction, node_power_w, run_energy_j

RUNS_CSV = Path(__file__).with_name("power_runs.csv")
CONSTANTS_JSON = Path(__file__).with_name("power_constants.json")


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of a constant before any row: where it may lie, an estimate and its standard error."""

    low: float
    high: float
    expected: float
    error: float


# Assumptions, wide beside what the rows say. Only one row is air-cooled: without it the fan fraction stays what is expected here.
PRIORS: Mapping[str, Prior] = {
    "waiting_fraction": Prior(0.05, 0.6, 0.3, 0.15),
    "host_w_per_accelerator": Prior(50.0, 400.0, 200.0, 75.0),
    "fan_fraction": Prior(0.0, 0.35, 0.15, 0.05),
    "wall_per_dc": Prior(1.0, 1.1, 1.04, 0.03),  # a power supply of the 80 PLUS Titanium class loses 4 % at half load
}
ROW_ERROR = 0.03  # of a row's power: meters, node-to-node spread, the estimate of busy


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
    meter: str  # "ac": at the wall; "dc": behind the power supply
    run_s: float
    node_power_w: float
    energy_kwh: float  # of all nodes, switches left out
    num_samples: int
    num_evaluations: int
    reference_system: str
    reference_num_accelerators: int
    reference_num_samples: int  # a step
    reference_step_s: float
    reference_evaluation_s: float
    source: str
    notes: str

    @property
    def run_name(self) -> tuple[str, str, str]:
        """What two rows share that are one run on two meters."""
        return self.round, self.system, self.benchmark

    @property
    def busy(self) -> float:
        """Estimated fraction of the run in which an accelerator computed, from the reference run's accelerator-seconds."""
        share = self.reference_num_accelerators / self.num_accelerators
        num_steps = self.num_samples / self.reference_num_samples
        evaluations_s = self.num_evaluations * self.reference_evaluation_s * share
        return float(busy_fraction(num_steps, self.reference_step_s * share, evaluations_s, self.run_s))


def power_runs() -> tuple[PowerRun, ...]:
    """The metered runs carried with the package."""
    with RUNS_CSV.open(encoding="utf-8", newline="") as file:
        return tuple(PowerRun(**_typed(row)) for row in csv.DictReader(file))


def _typed(row: dict[str, str]) -> dict[str, Any]:
    kinds = {"int": int, "float": float, "str": str}
    return {field.name: kinds[str(field.type)](row[field.name]) for field in fields(PowerRun)}


def power_constants() -> PowerConstants:
    """The constants fitted on all metered runs, as carried with the package."""
    return PowerConstants(**json.loads(CONSTANTS_JSON.read_text(encoding="utf-8"))["constants"])


def predicted_node_w(run: PowerRun, constants: PowerConstants, busy: float) -> float:
    """Watts of one node on the row's own meter, its accelerators computing for a fraction `busy` of the run."""
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


def fit_power_constants(runs: Sequence[PowerRun], busy: Sequence[float]) -> PowerConstants:
    """The four constants that bring the predicted powers of `runs` closest to the metered ones, in relative terms.

    What is expected of each constant before any row counts as one more measurement of it, so that a set of rows
    that says nothing of one (no air-cooled row) leaves it there.
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

    A run that was metered twice is held out with both meters: one would give the other away.
    """
    errors = np.empty(len(runs))
    for index, held_out in enumerate(runs):
        others = [(run, b) for run, b in zip(runs, busy, strict=True) if run.run_name != held_out.run_name]
        constants = fit_power_constants([run for run, _ in others], [b for _, b in others])
        errors[index] = errors_pct([held_out], [busy[index]], constants)[0]
    return errors


def fitted_constants_json(runs: Sequence[PowerRun], busy: Sequence[float]) -> str:
    """What `power_constants.json` holds: the constants, what they were fitted on, and how far off they are."""
    constants = fit_power_constants(runs, busy)
    content = {
        "constants": {name: float(f"{value:.4g}") for name, value in asdict(constants).items()},
        "fitted_on": f"{len(runs)} rows of {RUNS_CSV.name}",
        "mean_abs_error_pct": round(float(np.abs(errors_pct(runs, busy, constants)).mean()), 2),
        "held_out_mean_abs_error_pct": round(float(np.abs(held_out_errors_pct(runs, busy)).mean()), 2),
    }
    return json.dumps(content, indent=2) + "\n"
