"""`meshwright fit`: from the data in the package to `constants.json` and `residuals.json`.

1. The joint fit of the constants on the pre-training rows of NVIDIA GPUs with layout confidence high (`fit.py`).
2. One factor per container release on the dense Llama tables of NeMo and Megatron-Bridge, and nothing else.
3. One factor per generation and release on the Llama 2 70B LoRA rows.
4. The time of an evaluation in addition to its forward passes, one constant.
5. Effects of other classes of software and of chips of other generations (`classes.py`), and the costs of experts (`mixtures.py`).
6. Residuals of runs that were left out, for the intervals.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.describe.cluster import Cluster
from meshwright.describe.recipe import recipe
from meshwright.errors import InputError
from meshwright.evidence.classes import CHIPS, FURTHER, ClassRows, class_rows, effects_of
from meshwright.evidence.fit import BENCHMARKS, LATER, Rows, fit, leave_family_out, leave_one_out
from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.mixtures import Mixtures, as_entries, mixtures
from meshwright.evidence.runs import high_confidence_nvidia, read_runs
from meshwright.layout import Layouts
from meshwright.predict.practice import MESHWRIGHT, class_of
from meshwright.predict.prediction import evaluation_time_s, parts
from meshwright.predict.software import (
    FITTED,
    FittedValues,
    Software,
    generation_of,
    is_fitted,
    nearest_release,
    values_of,
)
from meshwright.predict.step import StepParts
from meshwright.predict.uncertainty import kind_of

HERE = Path(__file__).parent
MEASURED_CSV = HERE / "measured_runs.csv"
PUBLISHED_CSV = HERE / "published_runs.csv"
UNFITTED_CSV = HERE / "unfitted_runs.csv"  # other software: Megatron, torchtitan, and every tenth of vTrain's single-node rows
FSDP_CSV = HERE / "fsdp_runs.csv"  # ordinary FSDP: llm-foundry's own tables
TRAINER_CSV = HERE / "trainer_runs.csv"  # meshwright's own trainer on one GPU: benchmarks/h200.md and benchmarks/rehearse.py
FEWEST_RUNS = 2  # that a factor needs
Log = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Refit:
    """The two data files that a fit makes."""

    constants: dict[str, Any]
    residuals: dict[str, Any]

    def write(self, folder: Path = HERE) -> None:
        """Write both files where the predictor reads them."""
        (folder / "constants.json").write_text(json.dumps(self.constants, indent=1) + "\n", encoding="utf-8")
        head = {name: value for name, value in self.residuals.items() if name != "runs"}
        runs = ",\n".join(json.dumps(run) for run in self.residuals["runs"])  # one line each
        (folder / "residuals.json").write_text(json.dumps(head)[:-1] + f', "runs": [\n{runs}\n]}}\n', encoding="utf-8")


def pretraining(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """The runs of the joint fit."""
    return [run for run in high_confidence_nvidia(runs) if run.kind == "pretrain" and run.benchmark in BENCHMARKS]


def dense_llama(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Pre-training rows of published tables on dense Llama models."""
    return [run for run in runs if run.kind == "pretrain" and run.model.name.startswith("llama") and run.release.startswith("nemo-")]


def refit(measured: Path, published: Path, date: str, progress: Callable[[str], None] = lambda _: None) -> Refit:
    """Fit everything, and leave out every run and every family in turn; this takes minutes."""
    runs, tables = read_runs(measured).rows, read_runs(published).rows
    joint, llama = pretraining(runs), dense_llama(tables)
    adapters = [run for run in high_confidence_nvidia(runs) if run.kind == "lora"]
    progress("joint fit")
    values = fit(Rows.of(joint))
    constants = _constants({**values, LATER: values["blackwell_fp8_pj"]}, len(joint), measured.name, date)
    containers = _containers_and_ultra(joint, llama, constants)
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
    entries += _table_entries(llama, stacks, lambda run: containers)
    entries += _table_entries(adapters, stacks, lambda run: stacks.finetuning[_generation(run)])
    others = [run for path in (UNFITTED_CSV, FSDP_CSV, TRAINER_CSV) for run in read_runs(path).rows]
    entries += _of_classes([*runs, *others], constants, progress)
    entries += _of_mixtures([*tables, *runs], constants, progress)
    unstated = _unstated_routing(runs, values_of(constants))
    head = {"date": date, "measured": measured.name, "published": published.name, "unstated_routing": round(unstated, 5)}
    return Refit(constants, {**head, "runs": entries})


def _unstated_routing(runs: Sequence[MeasuredRun], values: FittedValues) -> float:
    """ln by which the step of runs on fabrics of unstated routing would change with the other kind of routing, as a mean of squares."""
    own = [run for run in runs if run.cluster.tiers[-1].routing_assumed and not _fits_a_domain(run)]
    other = [replace(run, cluster=_with_routing(run.cluster, "adaptive")) for run in own]
    if not own:
        return 0.0
    return float(np.sqrt(np.mean((log_errors(own, values) - log_errors(other, values)) ** 2)))


def _fits_a_domain(run: MeasuredRun) -> bool:
    return run.cluster.tiers[0].num_accelerators == run.num_accelerators


def _with_routing(cluster: Cluster, routing: str) -> Cluster:
    return replace(cluster, tiers=(*cluster.tiers[:-1], replace(cluster.tiers[-1], routing=routing, routing_assumed=False)))


def _containers_and_ultra(joint: Sequence[MeasuredRun], llama: Sequence[MeasuredRun], constants: dict[str, Any]) -> dict[str, float]:
    """Factors of containers, and the energy of an fp8 FLOP on Blackwell Ultra, for which only the tables have enough runs."""
    from scipy.optimize import minimize_scalar

    ultra = constants["constants"][LATER]
    own = [run for run in (*joint, *llama) if _is_ultra_fp8(run)]
    containers: dict[str, float] = {}
    for _ in range(3 if own else 1):
        containers = _factors(llama, values_of(constants), lambda run: run.release)
        constants["containers"] = containers

        def error(value: float) -> float:
            ultra["value"] = value
            return float(np.abs(log_errors(own, values_of(constants))).sum())

        if own:
            ultra["value"] = float(minimize_scalar(error, bounds=ultra["bounds"], method="bounded", options={"xatol": 1e-4}).x)
    return containers


def _is_ultra_fp8(run: MeasuredRun) -> bool:
    return run.cluster.accelerator.architecture == "blackwell-ultra" and recipe(run.workload.precision).number_format == "fp8"


def _of_classes(runs: Sequence[MeasuredRun], constants: dict[str, Any], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Fit classes of software and generations of chips; residuals with each model, and each release, left out in turn."""
    progress("classes of software")
    own = class_rows(runs)
    rows = ClassRows(own, values_of(constants))
    found = rows.fit()
    table = effects_of(found)
    stated = {name: {key: value for key, value in asdict(one).items() if value is not None} for name, one in table.items()}
    constants["classes"] = {name: effects for name, effects in stated.items() if name not in FURTHER}
    constants["further"] = {name: stated[name] for name in FURTHER}
    progress("every model, and every release of other software, left out in turn")
    size_out, release_out = rows.left_out(lambda run: run.model.name, found), rows.left_out(lambda run: run.release, found)
    unknown = rows.unknown(found)
    found_all = zip(own, size_out, release_out, unknown, strict=True)
    return [{**_entry(run, a, b), **_unknown(run, c)} for run, a, b, c in found_all]


def _unknown(run: MeasuredRun, error: float) -> dict[str, float]:
    """The error of a run whose software or chip is taken as unknown. Our own trainer is never unknown to us, so it has none."""
    return {} if class_of(run.release) == MESHWRIGHT else {"unknown": round(float(error), 5)}


def _of_mixtures(runs: Sequence[MeasuredRun], constants: dict[str, Any], progress: Callable[[str], None]) -> list[dict[str, Any]]:
    """Fit the costs of experts; residuals with each row, and each container, left out in turn."""
    progress("mixtures of experts")
    own = mixtures(runs)
    rows = Mixtures(own, values_of(constants))
    found = rows.fit()
    constants["expert_constants"] = as_entries(found)
    progress("every container left out in turn")
    container_out = rows.left_out(lambda run: run.release, found)
    return [_entry(run, a, b) for run, a, b in zip(own, rows.row_out(found), container_out, strict=True)]


def log_errors(runs: Sequence[MeasuredRun], values: FittedValues) -> Log:
    """ln(predicted / measured) of every run with the stack of its own release."""
    return np.array([np.log(_parts(run, stack_of(run, values)).step_s[0] / run.measured_s) for run in runs])


def stack_of(run: MeasuredRun, values: FittedValues) -> Software:
    """The stack of a run's own release; software of a kind that was never fitted is taken as the mean of the other classes."""
    try:
        return values.software(run.release)
    except InputError:
        return values.unknown_software(run.release)


def _parts(run: MeasuredRun, stack: Software) -> StepParts:
    return parts(run.job(stack), Layouts.of([run.layout]))


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
    rows_used = f"{num_rows} pre-training rows of {name}: NVIDIA GPUs, layout confidence high, Oracle 3,072 H100 left out"
    return {"date": date, "fitted_on": rows_used, "constants": entries, "containers": {}, "finetuning": {}, "evaluation_s": 0.0}


def _generation(run: MeasuredRun) -> str:
    return generation_of(run.cluster.accelerator)


def _factors(runs: Sequence[MeasuredRun], values: FittedValues, key: Callable[[MeasuredRun], Any]) -> dict[Any, float]:
    """One factor per key: the ln by which the median of its runs is slower than the reference release.

    The factor applies to compute, not to communication, so it is found in a few rounds.
    """
    counts = Counter(map(key, runs))
    # A factor from a single run would only correct that run: such a release is treated as its nearest relative.
    factors: dict[Any, float] = {name: 0.0 for name, count in counts.items() if count >= FEWEST_RUNS}
    for _ in range(6):
        for name in factors:
            own = [run for run in runs if key(run) == name]
            factors[name] -= float(np.median([_error_with(run, values, factors[name]) for run in own]))
    return factors


def _error_with(run: MeasuredRun, values: FittedValues, factor: float) -> float:
    """ln(predicted / measured) of a run with a factor of its own."""
    stack = replace(values.software("v5.1"), log_factor=factor, finetuning=dict.fromkeys(("hopper", "blackwell"), factor))
    return float(np.log(_parts(run, stack).step_s[0] / run.measured_s))


def _evaluation_s(runs: Sequence[MeasuredRun], values: FittedValues) -> float:
    """Seconds of an evaluation in addition to its forward passes: the median over the runs that state the time of one."""
    left = []
    for run in runs:
        if run.evaluation_s:
            priced = _parts(run, values.software(run.release))
            left.append(run.evaluation_s - float(evaluation_time_s(run.workload, Layouts.of([run.layout]), priced)[0]))
    return max(float(np.median(left)), 0.0)


def _entry(run: MeasuredRun, row: float, family_out: float) -> dict[str, Any]:
    return {
        "name": run.name,
        "family": list(run.family),
        "architecture": run.cluster.accelerator.architecture,
        "kind": kind_of(run.model, run.workload),
        "benchmark": run.benchmark,
        "num_accelerators": run.num_accelerators,
        "fabric_bytes_per_s": run.cluster.tiers[-1].bytes_per_s,
        "num_parameters": run.model.num_parameters,
        "row": round(float(row), 5),
        "family_out": round(float(family_out), 5),
        "fitted": is_fitted(run.cluster.accelerator) or run.cluster.accelerator.architecture in CHIPS,
    }


def _table_entries(
    runs: Sequence[MeasuredRun], values: FittedValues, factors: Callable[[MeasuredRun], Mapping[str, float]]
) -> list[dict[str, Any]]:
    """Residuals of runs whose only fitted number is a factor, which `factors` gives by release.

    They are computed with the factor without the run (it moves by the median error of the others), and with that of the nearest other
    release.
    """
    errors = log_errors(runs, values)
    entries = []
    for i, run in enumerate(runs):
        table = factors(run)
        own = [errors[j] for j, other in enumerate(runs) if j != i and other.release == run.release and factors(other) is table]
        others = {name: factor for name, factor in table.items() if name != run.release}
        family = _error_with(run, values, others[nearest_release(run.release, others)])
        entries.append(_entry(run, errors[i] - float(np.median(own)) if own else family, family))
    return entries
