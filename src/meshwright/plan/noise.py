"""How much runs of one layout differ. Plans that are closer than this are equal, because a measurement could not distinguish them."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np

MEASURED_CSV = Path(__file__).parents[1] / "evidence" / "measured_runs.csv"
SHARE = 90.0  # per cent of the layouts whose runs differ by no more


@cache
def run_spreads() -> tuple[float, ...]:
    """The relative differences between the step times of runs of one layout; one value for every layout that was run several times."""
    with MEASURED_CSV.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["vendor"] == "NVIDIA" and row["layout_confidence"] == "high"]
    return tuple(float(row["run_spread_pct"]) / 100 for row in rows if row["run_spread_pct"])


@cache
def run_noise() -> float:
    """The relative difference of step times that runs of one layout stay below, for nine of ten layouts."""
    return float(np.percentile(run_spreads(), SHARE))
