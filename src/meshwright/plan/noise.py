"""How much runs of one layout differ, and which differences between plans a prediction can show.

Plans whose predicted steps are closer than the error of such a difference are equal.
"""

from __future__ import annotations

import csv
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np

from meshwright.predict.practice import MLPERF, class_of
from meshwright.predict.uncertainty import COVERAGE, residuals

MEASURED_CSV = Path(__file__).parents[1] / "evidence" / "measured_runs.csv"
SHARE = 90.0  # per cent of the layouts whose runs differ by no more
DENSE = ("large", "small")


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


@cache
def difference_errors() -> tuple[float, ...]:
    """By how much the predicted ratio of two step times was wrong, for every pair of runs of one model, chip, precision and round.

    Each of the two was predicted by a fit without it.
    """
    groups: dict[tuple[object, ...], list[float]] = {}
    for run in residuals()["runs"]:
        if run["fitted"] and run["kind"] in DENSE and class_of(run["family"][2]) == MLPERF:
            groups.setdefault((run["num_parameters"], *run["family"]), []).append(float(run["row"]))
    return tuple(abs(one - other) for errors in groups.values() for one, other in combinations(errors, 2))


@cache
def plan_noise() -> float:
    """The relative difference of predicted step times below which two plans are equal: the error of four of five such differences."""
    return float(np.quantile(difference_errors(), COVERAGE, method="weibull"))
