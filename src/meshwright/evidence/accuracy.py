"""The accuracy of the predictor in numbers: the targets, and the results on the runs in the package."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.evidence.fit import Rows, fit, row_spread
from meshwright.evidence.measured import MeasuredRun, Runs
from meshwright.evidence.memory import memory_evidence
from meshwright.evidence.power import PowerRun, busy_shares, end_to_end_kwh, fit_power_constants, held_out_errors_pct, power_runs
from meshwright.evidence.refit import FSDP_CSV, MEASURED_CSV, PUBLISHED_CSV, UNFITTED_CSV, dense_llama, pretraining
from meshwright.evidence.runs import high_confidence_nvidia, read_runs
from meshwright.evidence.validate import Checked, Summary, summary, summary_of, validate
from meshwright.job import Job
from meshwright.layout import Layouts, parse_layout
from meshwright.predict import software as assumptions
from meshwright.predict.exact import exact_prediction
from meshwright.predict.practice import FSDP, MLPERF, NEMO, class_of
from meshwright.predict.prediction import Prediction, predict
from meshwright.predict.software import FITTED, GENERATIONS, FittedValues, fitted_values
from meshwright.predict.uncertainty import FEWEST, bounds, residuals, unknown_bounds, unknown_groups
from meshwright.units import MINUTE

PEERS_TOML = Path(__file__).with_name("peers.toml")
LARGE_BENCHMARKS = ("gpt3", "llama31_405b")
RECORD = ("llama-3.1-405b", "azure-gb200-128", "mlperf-llama31-405b", "tp=4,cp=2,pp=8,vp=8,dp=128,mbs=1")
RECORD_STEP_S, RECORD_RUN_S = 1.2704, 7.069 * MINUTE  # medians of the three logs: MLPerf Training v6.0, Azure 2048xAzure_GB200
METERED_KWH = 415.4  # GPT-3 on 512 H100, MLPerf Training v4.0, at the wall
MOST_CONSTANTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One target: its bounds, and the result."""

    name: str
    reached: float
    unit: str = "%"
    at_least: float = -np.inf
    at_most: float = np.inf

    @property
    def asked(self) -> str:
        """The bounds in words."""
        if np.isfinite(self.at_least):
            return f"{self.at_least:g} to {self.at_most:g}{self._unit}"
        return f"at most {self.at_most:g}{self._unit}" if np.isfinite(self.at_most) else "reported"

    @property
    def reached_words(self) -> str:
        """The result with its unit."""
        return f"{self.reached:.0f}" if not self.unit else f"{self.reached:.2f}{self._unit}"

    @property
    def is_met(self) -> bool:
        """Whether the target is met."""
        return self.at_least <= self.reached <= self.at_most

    @property
    def _unit(self) -> str:
        return f" {self.unit}" if self.unit else ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All runs in the package, predicted."""

    measured: tuple[Checked, ...]
    published: tuple[Checked, ...]
    unfitted: tuple[Checked, ...]
    files: Mapping[str, Runs]  # with the rows that cannot be predicted

    def joint(self) -> list[Checked]:
        """The rows of the joint fit."""
        return _picked(self.measured, pretraining)

    def large(self) -> list[Checked]:
        """GPT-3 and 405B: NVIDIA, layout confidence high, undisturbed."""
        return [row for row in self.joint() if row.run.benchmark in LARGE_BENCHMARKS]

    def small(self) -> list[Checked]:
        """Llama 3.1 8B, chosen in the same way."""
        return [row for row in self.joint() if row.run.benchmark == "llama31_8b"]

    def adapters(self) -> list[Checked]:
        """Llama 2 70B LoRA, chosen in the same way."""
        return [row for row in _picked(self.measured, high_confidence_nvidia) if row.run.kind == "lora"]

    def other_vendors(self) -> list[Checked]:
        """Rows on chips that are not in the joint fit."""
        return [row for row in self.measured if not row.run.is_nvidia]

    def dense_tables(self) -> list[Checked]:
        """Pre-training of dense Llama models in published tables."""
        return _picked(self.published, dense_llama)

    def expert_tables(self) -> list[Checked]:
        """Pre-training of mixtures of experts in published tables."""
        return [row for row in self.published if row.run.kind == "pretrain" and row.run.model.experts]

    def experts(self) -> list[Checked]:
        """Pre-training of mixtures of experts in published tables and MLPerf rounds."""
        return self.expert_tables() + [row for row in self.measured if row.run.model.experts]


def _picked(checked: Sequence[Checked], pick: Callable[[Sequence[MeasuredRun]], list[MeasuredRun]]) -> list[Checked]:
    kept = {id(run) for run in pick([row.run for row in checked])}
    return [row for row in checked if id(row.run) in kept]


@cache
def evidence() -> Evidence:
    """Every run in the package, predicted with the constants in the package."""
    return evidence_with(fitted_values())


def evidence_with(values: FittedValues, measured: Path = MEASURED_CSV, published: Path = PUBLISHED_CSV) -> Evidence:
    """The runs of the files, predicted with these constants."""
    paths = {"MLPerf submissions": measured, "published tables": published, "other software": UNFITTED_CSV, "ordinary FSDP": FSDP_CSV}
    files = {name: read_runs(path) for name, path in paths.items()}
    first, second, *others = (tuple(validate(runs.rows, values)) for runs in files.values())
    return Evidence(first, second, tuple(row for rows in others for row in rows), files)


def other_left_out(column: str, table: Mapping[str, Any] | None = None) -> dict[str, list[dict[str, Any]]]:
    """Entries of other software and other chips, and of mixtures of experts, by name of their class.

    `row`: without the model (a row, for experts); `family_out`: without the release (the container). `covered` is as in `left_out`.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for run in (table or residuals())["runs"]:
        name = _class_name(run)
        if name:
            groups.setdefault(name, []).append(run)
    everything = [run for runs in groups.values() for run in runs]
    return {
        name: [
            {**run, "error_pct": 100 * float(np.expm1(run[column])), "covered": _would_hold(run, runs, column, everything)} for run in runs
        ]
        for name, runs in sorted(groups.items())
    }


def unknown_left_out(table: Mapping[str, Any] | None = None) -> dict[str, tuple[Summary, float]]:
    """For each class of software and generation of chips: its runs, predicted as if nothing about it were known, and the upper end, in
    per cent, of the interval that follows from the others."""
    groups = unknown_groups((table or residuals())["runs"])
    found = {}
    for name, errors in groups.items():
        low, high = unknown_bounds({other: rows for other, rows in groups.items() if other != name})
        held = [low <= math.exp(-error) <= high for error in errors]
        found[name] = summary_of([100 * math.expm1(error) for error in errors], held), 100 * (high - 1)
    return found


def _class_name(run: Mapping[str, Any]) -> str:
    """The group of an entry; empty for dense models and adapters with software and chips of the joint fit."""
    kind = class_of(run["family"][2])
    if run["kind"] == "experts":
        return "mixtures of experts"
    if kind in (MLPERF, NEMO):
        return "" if run["architecture"] in GENERATIONS else run["architecture"]
    return kind


def left_out(column: str, *kinds: str, table: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Entries of fitted MLPerf rows, predicted by a fit without the row (`row`) or without its family (`family_out`).

    `error_pct` is the error then, and `covered` says whether an interval made without the row, or without its family, contains the run.
    """
    runs = (table or residuals())["runs"]
    entries = [run for run in runs if run["fitted"] and run["kind"] in kinds and class_of(run["family"][2]) == MLPERF]
    entries = [run for run in entries if run["architecture"] in GENERATIONS]
    return [{**run, "error_pct": 100 * float(np.expm1(run[column])), "covered": _would_hold(run, entries, column)} for run in entries]


def _would_hold(run: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], column: str, wider: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Whether an interval from the other entries of its kind contains the run; from the wider entries if those are too few."""
    alike = [other for other in entries if other["kind"] == run["kind"]]
    pools = [[other for other in pool if _is_apart(run, other, column)] for pool in (alike, entries, wider)]
    others = next((pool for pool in pools if len(pool) >= FEWEST), pools[0])
    low, high = bounds([other[column] for other in others])
    return bool(low <= np.exp(-run[column]) <= high)


def _is_apart(run: Mapping[str, Any], other: Mapping[str, Any], column: str) -> bool:
    return bool(other["family"] != run["family"]) if column == "family_out" else other is not run


def left_out_summary(entries: Sequence[Mapping[str, Any]]) -> Summary:
    """Errors and coverage of left-out runs."""
    return summary_of([run["error_pct"] for run in entries], [run["covered"] for run in entries])


def record_prediction() -> Prediction:
    """The record machine: Llama 3.1 405B on 8,192 GB200, predicted with the stack of its round."""
    model, cluster, workload, layout = RECORD
    return exact_prediction(predict(Job(model, cluster, workload, "v6.0"), Layouts.of([parse_layout(layout)])))


@dataclass(frozen=True, slots=True)
class Energy:
    """Metered runs and the errors of their power, each predicted by constants fitted on the others; and the energy of a whole run."""

    runs: tuple[PowerRun, ...]
    held_out_pct: tuple[float, ...]
    gpt3_kwh: float  # 512 H100, with the duration predicted too


def energy() -> Energy:
    """Errors of metered runs, each left out in turn."""
    runs = power_runs()
    busy = busy_shares(runs)
    gpt3 = next(run for run in runs if (run.benchmark, run.num_accelerators, run.meter) == ("gpt3", 512, "ac"))
    constants = fit_power_constants(runs, busy)
    return Energy(runs, tuple(held_out_errors_pct(runs, busy).tolist()), end_to_end_kwh(gpt3, constants))


def headline() -> list[Figure]:
    """Every target and its result; needs scipy for the energy rows."""
    return [*time_figures(evidence(), residuals()), *_interval_figures(evidence()), *_machine_figures(), *_other_figures()]


def time_figures(rows: Evidence, table: Mapping[str, Any]) -> list[Figure]:
    """Errors of step times, with every run fitted and with runs left out."""
    large, small = summary(rows.large()), summary(rows.small())
    row_out = left_out_summary(left_out("row", "large", table=table))
    family_out = left_out_summary(left_out("family_out", "large", "small", table=table))
    return [
        Figure(name="GPT-3 and 405B, mean error", reached=large.mape_pct, at_most=1.5),
        Figure(name="GPT-3 and 405B, worst", reached=abs(large.worst_pct), at_most=6),
        Figure(name="GPT-3 and 405B, each row left out, mean", reached=row_out.mape_pct, at_most=2),
        Figure(name="Llama 3.1 8B, mean error", reached=small.mape_pct, at_most=4),
        Figure(name="Llama 3.1 8B, worst", reached=abs(small.worst_pct), at_most=10),
        Figure(name="Each family left out whole, mean", reached=family_out.mape_pct, at_most=8),
        Figure(name="Each family left out whole, worst", reached=abs(family_out.worst_pct), at_most=20),
        Figure(name="Llama 2 70B LoRA, mean error", reached=summary(rows.adapters()).mape_pct, at_most=10),
        Figure(name="Dense Llama in published tables, mean error", reached=summary(rows.dense_tables()).mape_pct, at_most=8),
        Figure(name="Mixtures of experts, mean error", reached=summary(rows.experts()).mape_pct, at_most=10),
        Figure(
            name="Mixtures of experts, each container left out, mean",
            reached=left_out_summary(other_left_out("family_out", table)["mixtures of experts"]).mape_pct,
            at_most=15,
        ),
        Figure(
            name="Ordinary FSDP, each model left out, mean",
            reached=left_out_summary(other_left_out("row", table)[FSDP]).mape_pct,
            at_most=10,
        ),
    ]


def _interval_figures(rows: Evidence) -> list[Figure]:
    family_out = left_out_summary(left_out("family_out", "large", "small"))
    bounds_pct: dict[str, Any] = {"at_least": 70, "at_most": 95}
    return [
        Figure(name="80 % interval, MLPerf rows inside", reached=summary(rows.measured).coverage_pct, **bounds_pct),
        Figure(name="80 % interval, rows of published tables inside", reached=summary(rows.published).coverage_pct, **bounds_pct),
        Figure(name="80 % interval, families left out inside", reached=family_out.coverage_pct, **bounds_pct),
    ]


def _machine_figures() -> list[Figure]:
    record = record_prediction()
    step_pct = 100 * (float(record.step_s[0]) / RECORD_STEP_S - 1)
    run_pct = 100 * (float(record.time_to_train_s[0]) / RECORD_RUN_S - 1)
    return [
        Figure(name="Record machine, step time off by", reached=abs(step_pct), at_most=2),
        Figure(name="Record machine, time to train off by", reached=abs(run_pct), at_most=3),
    ]


def _other_figures() -> list[Figure]:
    metered = energy()
    return [
        Figure(name="Peak memory of cut-down models on B200, mean error", reached=memory_evidence().mean_abs_error_pct, at_most=1.5),
        Figure(name="Power of metered runs, each left out, mean error", reached=float(np.abs(metered.held_out_pct).mean()), at_most=10),
        Figure(name="Energy of GPT-3 on 512 H100 off by", reached=100 * abs(metered.gpt3_kwh / METERED_KWH - 1), at_most=5),
        Figure(name="Fitted constants", reached=len(FITTED), unit="", at_most=MOST_CONSTANTS),
    ]


@cache
def peers() -> Mapping[str, Any]:
    """The errors of other planners, as stored in the package."""
    return tomllib.loads(PEERS_TOML.read_text(encoding="utf-8"))


def on_peer_run(machine: Mapping[str, Any]) -> list[Checked]:
    """Our rows of one of the seven runs of the comparison; several if the round is not stated, none if we have no row."""
    wanted = (machine["benchmark"], machine["accelerator"], machine["num_accelerators"])
    return [row for row in evidence().large() if (row.run.benchmark, row.run.accelerator, row.run.num_accelerators) == wanted]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A number that was chosen, not fitted: its reason, and the mean error of the large models with a smaller and a larger value."""

    name: str
    value: Any
    reason: str
    less_pct: float
    more_pct: float


def sensitivity(change: float = 0.2, done: Callable[[str], None] = lambda _: None) -> list[Assumption]:
    """Every assumption of the predictor, and the mean error of GPT-3 and 405B after a refit with each a fifth smaller and larger."""
    runs = [row.run for row in evidence().joint()]
    is_large = np.array([run.benchmark in LARGE_BENCHMARKS for run in runs])

    def refitted_pct(name: str, factor: float) -> float:
        done(name)
        with _assumed(name, factor):
            rows = Rows.of(runs)
            errors = rows.log_errors(fit(rows))
        return 100 * float(np.abs(np.expm1(errors[is_large])).mean())

    return [
        Assumption(
            name, getattr(assumptions, name), f"{one.meaning}: {one.reason}", refitted_pct(name, 1 - change), refitted_pct(name, 1 + change)
        )
        for name, one in assumptions.ASSUMED.items()
    ]


@dataclass(frozen=True, slots=True)
class EvenWeights:
    """The results of a fit in which rows that no wall clock confirms have the same weight as the others."""

    record_pct: float  # error of the record machine's step
    large_pct: float  # mean error of GPT-3 and 405B
    worst_pct: float


def even_weights() -> EvenWeights:
    """The results without the rule of `fit.UNCONFIRMED`, which decides between two rows of round v6.0 that contradict each other."""
    checked = evidence().joint()
    runs = [row.run for row in checked]
    rows = Rows.of(runs)
    spread = np.array([row_spread(run, unconfirmed=1.0) for run in runs])
    even = replace(rows, spread=spread)
    errors = 100 * np.expm1(even.log_errors(fit(even)))
    large = errors[[run.benchmark != "llama31_8b" for run in runs]]
    record = errors[[run.round == "v6.0" and run.accelerator == "gb200" for run in runs]]
    return EvenWeights(float(record[0]), float(np.abs(large).mean()), float(large[np.argmax(np.abs(large))]))


@contextmanager
def _assumed(name: str, factor: float) -> Iterator[None]:
    """Scale an assumption inside the block. It is a constant of a module, so nothing else may predict meanwhile."""
    value = getattr(assumptions, name)
    if isinstance(value, dict):
        kept = dict(value)
        value.update({key: _scaled(number, factor) for key, number in kept.items()})  # in place, because other modules use the same dict
        try:
            yield
        finally:
            value.update(kept)
    else:
        setattr(assumptions, name, tuple(_scaled(v, factor) for v in value) if isinstance(value, tuple) else _scaled(value, factor))
        try:
            yield
        finally:
            setattr(assumptions, name, value)


def _scaled(value: float, factor: float) -> float:
    """The scaled number. A share that was below 1 stays at most 1."""
    return min(value * factor, 1.0) if value < 1 else value * factor
