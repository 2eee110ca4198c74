"""How much the step times of jobs without a pipeline vary. No such log is in the package, but rows of measured runs state it.

Most of these rows are read from progress lines several steps apart, or from blocks of steps. Both average out the changes from step to
step, so the stated spread is treated as drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshwright.evidence.refit import MEASURED_CSV
from meshwright.evidence.runs import read_runs
from meshwright.evidence.table import read_table
from meshwright.record.step_times import MAD_TO_STD
from meshwright.simulator import noise as draws

COLUMN = "jitter_robust_std_pct"
UNIT_STEPS = 300  # of a run, as most have
UNIT_RUNS = 200
UNIT_SEED = 5
NORMAL_90 = 1.2815515655446004  # 80 % of a normal distribution are within so many standard deviations


@dataclass(frozen=True, slots=True)
class RowDrift:
    """The drift of such jobs, and how much its logarithm differs between rows."""

    drift: float
    level_spread: float
    num_rows: int


def drift_without_pipeline() -> RowDrift:
    """The median over all rows with one stage, for all chips: it differs less between chips than between rows of one chip."""
    stated = {row.line: row.text(COLUMN) for row in read_table(MEASURED_CSV).rows}
    runs = [run for run in read_runs(MEASURED_CSV).rows if run.layout.pp == 1 and stated[run.source_row]]
    unit_pct = _unit_pct()
    drifts = np.array([math.log(float(stated[run.source_row]) / unit_pct) for run in runs])
    middle = float(np.median(drifts))
    spread = float(np.quantile(np.abs(drifts - middle), 0.8)) / NORMAL_90
    return RowDrift(drift=round(math.exp(middle), 9), level_spread=round(spread, 4), num_rows=len(runs))


def _unit_pct() -> float:
    """Robust standard deviation in per cent that a drift of 1 gives a run."""
    rng = np.random.default_rng(UNIT_SEED)
    paths = np.stack([draws.drift_path(UNIT_STEPS, rng) for _ in range(UNIT_RUNS)])
    away = np.abs(paths - np.median(paths, axis=1, keepdims=True))
    return float(100 * MAD_TO_STD * np.median(np.median(away, axis=1)))
