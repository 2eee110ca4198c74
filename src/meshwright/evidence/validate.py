"""Predictions of measured runs, compared with the measurements: errors, bias, the worst error, and how often the 80 % interval held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.measured import MeasuredRun
from meshwright.evidence.refit import stack_of
from meshwright.job import Job
from meshwright.layout import Layouts
from meshwright.predict.exact import step_excess_s
from meshwright.predict.inputs import inputs_of, stacked
from meshwright.predict.software import FittedValues, Software, fitted_values
from meshwright.predict.step import price
from meshwright.predict.uncertainty import Interval, interval


@dataclass(frozen=True, slots=True)
class Checked:
    """One measured run and its prediction."""

    run: MeasuredRun
    predicted_s: float
    interval: Interval
    software: Software

    @property
    def error_pct(self) -> float:
        """Predicted relative to measured; positive if too much was predicted."""
        return 100 * (self.predicted_s / self.run.measured_s - 1)

    @property
    def low_s(self) -> float:
        """Lower end of the 80 % interval."""
        return self.predicted_s * self.interval.low

    @property
    def high_s(self) -> float:
        """Upper end of the 80 % interval."""
        return self.predicted_s * self.interval.high

    @property
    def is_covered(self) -> bool:
        """Whether the measured time lies in the interval."""
        return self.low_s <= self.run.measured_s <= self.high_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of several runs, in per cent; nan if there are none."""

    num_runs: int
    mape_pct: float
    bias_pct: float
    worst_pct: float  # the largest, with its sign
    coverage_pct: float


def validate(runs: Sequence[MeasuredRun], values: FittedValues | None = None) -> list[Checked]:
    """Predict every run with the stack of its own release, all in one call."""
    if not runs:
        return []
    values = values or fitted_values()
    jobs = [run.job(stack_of(run, values)) for run in runs]
    return [
        Checked(run, time_s, interval(job), job.software)
        for run, job, time_s in zip(runs, jobs, _predicted_s(runs, jobs, values), strict=True)
    ]


def _predicted_s(runs: Sequence[MeasuredRun], jobs: Sequence[Job], values: FittedValues) -> list[float]:
    """Seconds of every run's step by the exact schedule, as `meshwright predict` prints them."""
    layouts = [run.layout for run in runs]
    detail = price(stacked([inputs_of(job) for job in jobs]), Layouts.of(layouts), values.constants)
    excess_s = [step_excess_s(detail, layout, row) for row, layout in enumerate(layouts)]
    return [float(closed_s) + more_s for closed_s, more_s in zip(detail.step_s, excess_s, strict=True)]


def summary(checked: Sequence[Checked]) -> Summary:
    """The errors of all predictions in a summary."""
    return summary_of([row.error_pct for row in checked], [row.is_covered for row in checked])


def summary_of(errors_pct: Sequence[float] | NDArray[np.float64], covered: Sequence[bool] = ()) -> Summary:
    """The same from errors in per cent."""
    if not len(errors_pct):
        return Summary(num_runs=0, mape_pct=nan, bias_pct=nan, worst_pct=nan, coverage_pct=nan)
    errors = np.asarray(errors_pct, dtype=np.float64)
    return Summary(
        num_runs=len(errors),
        mape_pct=float(np.abs(errors).mean()),
        bias_pct=float(errors.mean()),
        worst_pct=float(errors[np.abs(errors).argmax()]),
        coverage_pct=100 * float(np.mean(covered)) if len(covered) else 0.0,
    )


def grouped(checked: Iterable[Checked], key: Callable[[Checked], str]) -> dict[str, list[Checked]]:
    """The rows grouped by a name, in the order of names."""
    groups: dict[str, list[Checked]] = {}
    for row in checked:
        groups.setdefault(key(row), []).append(row)
    return dict(sorted(groups.items()))


def family_name(row: Checked) -> str:
    """Accelerator, precision and release in one line."""
    return " ".join(row.run.family)
