"""`meshwright fit`: from carried data to `constants.json` and `residuals.json`.

1. The joint fit of the constants on the pre-training rows of NVIDIA GPUs with layout confidence high (`fit.py`).
2. One factor per container release on the dense Llama tables of NeMo and Megatron-Bridge, and nothing else.
3. One factor per generation and release on the Llama 2 70B LoRA rows.
4. What an evaluation takes beside its forward passes, one constant.
5. Residuals of runs that were left out, for the intervals.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.fit import BENCHMARKS, Rows, fit, leave_family_out, leave_one_out
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.runs import high_confidence_nvidia, read_runs
from meshwright.layout import Layouts
from meshwright.predict import evaluation_time_s, parts
from meshwright.question import GENERATION
from meshwright.software import FITTED, FittedValues, Software, values_of
from meshwright.step import StepParts
from meshwright.uncertainty import LARGE

HERE = Path(__file__).parent
MEASURED_CSV = HERE / "measured_runs.csv"
PUBLISHED_CSV = HERE / "published_runs.csv"
Log = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Refit:
    """The two data files that a fit makes."""

    constants: dict[str, Any]
    residuals: dict[str, Any]

    def write(self, folder: Path = HERE) -> None:
        """Write both files where the predictor reads them."""
        for name, data in (("constants.json", self.constants), ("residuals.json", self.residuals)):
            (folder / name).write_text(json.dumps(data, indent=1) + "\n")


def pretraining(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs of the joint fit."""
    return [run for run in high_confidence_nvidia(runs) if run.kind == "pretrain" and run.benchmark in BENCHMARKS]


def dense_llama(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Pre-training rows of published tables on dense Llama models."""
    return [run for run in runs if run.kind == "pretrain" and run.model.name.startswith("llama") and run.release.startswith("nemo-")]


def refit(measured: Path, published: Path, date: str, progress: Callable[[str], None] = lambda _: None) -> Refit:
    """Fit everything, and leave out every run and every family in turn; minutes of work."""
    runs, tables = read_runs(measured).rows, read_runs(published).rows
    joint, llama = pretraining(runs), dense_llama(tables)
    adapters = [run for run in high_confidence_nvidia(runs) if run.kind == "lora"]
    progress("joint fit")
    values = fit(Rows.of(joint))
    constants = _constants(values, len(joint), measured.name, date)
    containers = _factors(llama, values_of(constants), lambda run: run.release)
    constants["containers"] = {name: factor for name, factor in sorted(containers.items())}
    finetuning = _factors(adapters, values_of(constants), lambda run: (_generation(run), run.release))
    for (generation, release), factor in sorted(finetuning.items()):
        constants["finetuning"].setdefault(generation, {})[release] = factor
    constants["evaluation_s"] = _evaluation_s(joint, values_of(constants))
    progress("every run left out in turn")
    row_out = leave_one_out(joint, values)
    progress("every family left out in turn")
    family_out = leave_family_out(joint, values)
    stacks = values_of(constants)
    entries = [_entry(run, a, b) for run, a, b in zip(joint, row_out, family_out, strict=True)]
    entries += _table_entries(llama, stacks, lambda run: run.release, lambda run: "")
    entries += _table_entries(adapters, stacks, lambda run: (_generation(run), run.release), _generation)
    others = [run for run in runs if run.vendor != "NVIDIA" and run.is_high_confidence]
    entries += [_entry(run, e, e, fitted=False) for run, e in zip(others, log_errors(others, stacks), strict=True)]
    return Refit(constants, {"date": date, "measured": measured.name, "published": published.name, "runs": entries})


def log_errors(runs: Sequence[MeasuredRun], values: FittedValues) -> Log:
    """ln(predicted / measured) of every run with its own release's stack."""
    return np.array([np.log(_predicted_s(run, values) / run.measured_s) for run in runs])


def _predicted_s(run: MeasuredRun, values: FittedValues) -> float:
    return float(_parts(run, values.software(run.release)).step_time_s[0])


def _parts(run: MeasuredRun, stack: Software) -> StepParts:
    return parts(run.model, run.cluster, run.workload, Layouts.of([run.layout]), stack)


def _constants(values: Mapping[str, float], num_rows: int, name: str, date: str) -> dict[str, Any]:
    entries = {
        key: {
            "value": value,
            "unit": FITTED[key].unit,
            "meaning": FITTED[key].meaning,
            "bounds": [FITTED[key].low, FITTED[key].high],
            "expected": [FITTED[key].expected, FITTED[key].spread],
        }
        for key, value in values.items()
    }
    said = f"{num_rows} pre-training rows of {name}: NVIDIA GPUs, layout confidence high, Oracle 3,072 H100 left out"
    return {"date": date, "fitted_on": said, "constants": entries, "containers": {}, "finetuning": {}, "evaluation_s": 0.0}


def _generation(run: MeasuredRun) -> str:
    return GENERATION.get(run.cluster.accelerator.architecture, "hopper")


def _factors(runs: Sequence[MeasuredRun], values: FittedValues, key: Callable[[MeasuredRun], Any]) -> dict[Any, float]:
    """One factor per key: the ln by which the median of its runs is slower than the reference release.

    The factor stretches compute, not communication, so it is found in a few rounds.
    """
    factors: dict[Any, float] = dict.fromkeys(map(key, runs), 0.0)
    for _ in range(6):
        for name in factors:
            own = [run for run in runs if key(run) == name]
            factors[name] -= float(np.median([_error_with(run, values, factors[name]) for run in own]))
    return factors


def _error_with(run: MeasuredRun, values: FittedValues, factor: float) -> float:
    """ln(predicted / measured) of a run under a factor of its own."""
    stack = replace(values.software("v5.1"), log_factor=factor, finetuning=dict.fromkeys(("hopper", "blackwell"), factor))
    return float(np.log(_parts(run, stack).step_time_s[0] / run.measured_s))


def _evaluation_s(runs: Sequence[MeasuredRun], values: FittedValues) -> float:
    """Seconds of an evaluation beside its forward passes: the median over the runs that state one."""
    left = []
    for run in runs:
        if run.evaluation_s:
            priced = _parts(run, values.software(run.release))
            left.append(run.evaluation_s - float(evaluation_time_s(run.workload, Layouts.of([run.layout]), priced)[0]))
    return max(float(np.median(left)), 0.0)


def _entry(run: MeasuredRun, row: float, family_out: float, fitted: bool = True) -> dict[str, Any]:
    kind = "adapters" if run.workload.adapters else ("large" if run.model.num_parameters >= LARGE else "small")
    return {
        "name": run.name,
        "family": list(run.family),
        "architecture": run.cluster.accelerator.architecture,
        "kind": kind,
        "benchmark": run.benchmark,
        "num_accelerators": run.num_accelerators,
        "row": round(float(row), 5),
        "family_out": round(float(family_out), 5),
        "fitted": fitted,
    }


def _table_entries(
    runs: Sequence[MeasuredRun], values: FittedValues, key: Callable[[MeasuredRun], Any], pool: Callable[[MeasuredRun], Any]
) -> list[dict[str, Any]]:
    """Residuals of runs whose only fitted number is a factor: by the factor without the run, and by those of the other releases."""
    raw = {id(run): _error_with(run, values, 0.0) for run in runs}
    entries = []
    for run in runs:
        own = [raw[id(other)] for other in runs if other is not run and key(other) == key(run)]
        others = [raw[id(other)] for other in runs if key(other) != key(run) and pool(other) == pool(run)]
        others = others or [raw[id(other)] for other in runs if key(other) != key(run)]
        family = raw[id(run)] - float(np.median(others))
        entries.append(_entry(run, raw[id(run)] - float(np.median(own)) if own else family, family))
    return entries
