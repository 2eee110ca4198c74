"""How much runs of one layout differ: plans that are closer than that are equal, as far as anyone could measure."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

MEASURED_CSV = Path(__file__).parents[1] / "evidence" / "measured_runs.csv"
SHARE = 90.0  # per cent of the layouts whose runs differ by no more


@cache
def run_spreads() -> tuple[float, ...]:
    """By how much the step times of the runs of one layout differ, as fractions: a value for every layout that was run several times."""
    with MEASURED_CSV.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["vendor"] == "NVIDIA" and row["layout_confidence"] == "high"]
    return tuple(float(row["run_spread_pct"]) / 100 for row in rows if row["run_spread_pct"])


@cache
def run_noise() -> float:
    """The difference of step times, as a fraction, that nine of ten layouts stay below between runs of their own."""
    return float(np.percentile(run_spreads(), SHARE))
