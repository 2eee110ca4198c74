"""The step times of a run, in order: statistics, and reading from a CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.files import READABLE, read_text

MAD_TO_STD = 1.4826  # of a normal distribution


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """The step times of one or several runs, in their order, and how they were read."""

    seconds: NDArray[np.float64]  # of a step; the mean if a value stands for several steps
    is_first: NDArray[np.bool_]  # whether it is the first after a start or an evaluation
    method: str
    first_step_s: float = math.nan  # of the first step of the run; NaN if it is not logged separately
    steps_each: NDArray[np.float64] | None = None  # how many steps a value stands for; None: one
    last_steps: NDArray[np.float64] | None = None  # number, from 1, of the last of them; None: values are steps, from the first on

    @property
    def steady_s(self) -> NDArray[np.float64]:
        """Seconds of the steps that follow another step; of all steps if an evaluation follows every step."""
        steady = self.seconds[~self.is_first]
        return steady if len(steady) else self.seconds

    @property
    def median_s(self) -> float:
        """Median seconds of a step, without first steps after a start or an evaluation."""
        return float(np.median(self.steady_s))

    @property
    def mean_s(self) -> float:
        """Mean seconds of all steps, first ones included."""
        return float(np.average(self.seconds, weights=self.steps_each))

    @property
    def first_median_s(self) -> float:
        """Median seconds of the first step after a start or an evaluation; NaN if none is marked."""
        return float(np.median(self.seconds[self.is_first])) if self.is_first.any() else math.nan

    @property
    def robust_std_pct(self) -> float:
        """Spread of the steady steps in per cent of their median, by the median absolute deviation, which ignores stalls."""
        deviation = np.median(np.abs(self.steady_s - self.median_s))
        return float(100 * MAD_TO_STD * deviation / self.median_s)

    @property
    def std_pct(self) -> float:
        """Standard deviation of the steady steps in per cent of their mean, stalls included."""
        return float(100 * np.std(self.steady_s) / np.mean(self.steady_s))

    @property
    def p99_over_p50(self) -> float:
        """99th percentile of the steady steps over their median."""
        return float(np.percentile(self.steady_s, 99)) / self.median_s

    @property
    def worst(self) -> tuple[int, float]:
        """Number, from 1, and seconds of the longest of all steps, first ones included.

        If several steps are logged as one, the number of the last.
        """
        index = int(np.argmax(self.seconds))
        return index + 1 if self.last_steps is None else round(float(self.last_steps[index])), float(self.seconds[index])

    @property
    def drift_pct(self) -> float:
        """Median of the last tenth of the steady steps compared with that of the first tenth, in per cent."""
        tenth = math.ceil(len(self.steady_s) / 10)
        first, last = np.median(self.steady_s[:tenth]), np.median(self.steady_s[-tenth:])
        return float(100 * (last / first - 1))

    @staticmethod
    def joined(parts: Sequence[StepTimes]) -> StepTimes:
        """The steps of several runs as one series; its first step is the first run's."""
        methods = dict.fromkeys(part.method for part in parts)
        seconds = np.concatenate([part.seconds for part in parts])
        each = np.concatenate([np.ones(len(part.seconds)) if part.steps_each is None else part.steps_each for part in parts])
        is_first = np.concatenate([part.is_first for part in parts])
        return StepTimes(seconds, is_first, "; ".join(methods), parts[0].first_step_s, each)


def read_step_times(path: str | Path) -> StepTimes:
    """Step times from a CSV with the columns `step,step_s`, and `first_after_eval` (0 or 1) if it is known.

    Without this column only the first row counts as a first step. `step_time_s`, the older name of `step_s`, can also be read.
    """
    try:
        text = read_text(path, encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise InputError(f"cannot read the step times: {error.strerror or error}", where=str(path), fix=READABLE) from None
    rows = csv.DictReader(text.splitlines())
    columns = rows.fieldnames or ()
    times = "step_time_s" if "step_time_s" in columns else "step_s"
    for column in ("step", times):
        if column not in columns:
            raise InputError(f"no column {column!r}", where=f"{path}: line 1", fix="name the columns step,step_s")
    try:
        read = [(_positive_s(row, times, f"{path}: line {rows.line_num}"), row.get("first_after_eval")) for row in rows]
    except csv.Error as error:
        raise InputError(f"not a CSV: {error}", where=f"{path}: line {rows.line_num}", fix="write one step a row: step,step_s") from None
    if not read:
        raise InputError("the file has no step", where=str(path), fix="give at least one row of step,step_s")
    is_first = [mark == "1" if mark is not None else i == 0 for i, (_, mark) in enumerate(read)]
    seconds = np.array([seconds for seconds, _ in read], dtype=np.float64)
    return StepTimes(seconds, np.array(is_first, dtype=np.bool_), "step-time CSV", float(seconds[0]))


def _positive_s(row: Mapping[str, Any], column: str, where: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{column} is {text!r}, not a positive number of seconds", where=where, fix="write 1.27, for example")
    return value
