"""How far a predicted time may be off: 80 % intervals from what the predictor got wrong on comparable runs it had not seen.

`evidence/residuals.json`, written by `meshwright fit`, holds ln(predicted/measured) of every run, predicted by a fit that left out that run
(`row`) or its whole family (`family`). A question is compared with those runs: the closer its like, the narrower the interval.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.describe.cluster import Cluster
from meshwright.describe.model import Model
from meshwright.describe.workload import Workload
from meshwright.software import Software

RESIDUALS_FILE = Path(__file__).parent / "evidence" / "residuals.json"
COVERAGE = 0.8
LARGE = 50e9  # parameters: above, a step is long compared with everything that happens once a step
FEWEST = 5  # runs that make a pool of their own


@dataclass(frozen=True, slots=True)
class Interval:
    """Factors on a predicted time that enclose the true one in 80 of 100 cases, and why they are what they are."""

    low: float
    high: float
    kin: str  # what the question was compared with
    num_runs: int
    distance: str  # "measured", "near", "far"


@cache
def residuals(path: Path = RESIDUALS_FILE) -> Mapping[str, Any]:
    """The residuals that the package carries."""
    return dict(json.loads(path.read_text()))


def interval(model: Model, cluster: Cluster, workload: Workload, stack: Software, table: Mapping[str, Any] | None = None) -> Interval:
    """The interval of a question.

    measured: the accelerator, number format and release were all run; errors of single runs left out.
    near: the generation was run, but not this accelerator, format or release together; errors of whole families left out.
    far: chips of other generations, which were never fitted; errors on those that were measured all the same.
    """
    runs = (table or residuals())["runs"]
    family = (cluster.accelerator.name, workload.precision, stack.release)
    like = [run for run in runs if run["kind"] == _kind(model, workload)] or runs
    generation = cluster.accelerator.architecture
    if not any(run["architecture"] == generation and run["fitted"] for run in runs):
        return _interval([run["row"] for run in runs if not run["fitted"]], "chips that no constant was fitted for", "far")
    if stack.known and any(tuple(run["family"]) == family for run in like):
        kin = [run["row"] for run in like if run["fitted"] and tuple(run["family"]) == family]
        own = kin if len(kin) >= FEWEST else [run["row"] for run in like if run["fitted"]]
        return _interval(own, "runs of this accelerator, precision and release, each left out in turn", "measured")
    return _interval([run["family_out"] for run in like if run["fitted"]], "families of runs left out whole", "near")


def _kind(model: Model, workload: Workload) -> str:
    if workload.adapters:
        return "adapters"
    return "large" if model.num_parameters >= LARGE else "small"


def _interval(errors: Sequence[float], kin: str, distance: str) -> Interval:
    """Factors from the spread of ln(predicted/measured): the truth lies as far to either side as past truths did."""
    half = float(np.quantile(np.abs(errors), COVERAGE))
    return Interval(low=float(np.exp(-half)), high=float(np.exp(half)), kin=kin, num_runs=len(errors), distance=distance)
