"""The joint fit of the constants in `meshwright.predict.software`, and its predictions for rows and families that were left out.

One least-squares fit over all rows at once. A residual is ln(predicted/measured) divided by the expected spread of such rows. Every
constant also has a value expected beforehand, which counts as an observation: what the rows do not determine stays at the physically
expected value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layouts
from meshwright.predict.inputs import Inputs, inputs_of, stacked
from meshwright.predict.software import FITTED, REFERENCE_RELEASE, RELEASES, Constants, nearest_release, software
from meshwright.predict.step import price

BENCHMARKS = ("gpt3", "llama31_405b", "llama31_8b")
# Per cent by which equal jobs of different submitters differ: eight B200 with one layout vary by 2.7 % on the 8B model; for the large
# models, the rows of one round follow one formula within 1 %.
ROW_SPREAD_PCT = {"gpt3": 1.0, "llama31_405b": 1.0, "llama31_8b": 2.5}
UNCONFIRMED = 2.0  # factor on that spread if no wall clock confirms the logged step time
EXPECTATION_WEIGHT = 3.0  # weight of the expected values, in residuals of this many spreads
RELEASE_STEP = 0.086  # ln: how much one release differs from the next, as a spread
OUTLIER = 3.0  # residuals beyond this count linearly, not by their square

Errors = NDArray[np.float64]
LATER = "ultra_fp8_pj"  # fitted later, on files with more rows of it; until then Blackwell Ultra counts as Blackwell
_NAMES = tuple(name for name in FITTED if name != LATER)


@dataclass(frozen=True, slots=True)
class Rows:
    """Measured runs as columns, ready to be priced with any constants."""

    inputs: Inputs
    layouts: Layouts
    measured_s: NDArray[np.float64]
    release: NDArray[np.int64]  # index into RELEASES
    spread: NDArray[np.float64]  # ln

    @staticmethod
    def of(runs: Sequence[MeasuredRun]) -> Rows:
        """Columns of the runs, in their order. A release that is not in RELEASES is replaced by its nearest relative."""
        known, reference = dict.fromkeys(RELEASES, 0.0), software(REFERENCE_RELEASE)
        return Rows(
            inputs=stacked([inputs_of(run.job(reference)) for run in runs]),  # factors of releases are fitted, so they are given separately
            layouts=Layouts.of([run.layout for run in runs]),
            measured_s=np.array([run.measured_s for run in runs]),
            release=np.array([RELEASES.index(nearest_release(run.release, known)) for run in runs]),
            spread=np.array([row_spread(run) for run in runs]),
        )

    def take(self, mask: NDArray[np.bool_]) -> Rows:
        """The rows that a mask selects."""
        picked = {
            f.name: value[:, mask] if value.ndim == 2 else value[mask]
            for f in fields(Inputs)
            for value in [np.asarray(getattr(self.inputs, f.name)) * np.ones_like(self.measured_s)]
        }
        return Rows(Inputs(**picked), self.layouts.take(mask), self.measured_s[mask], self.release[mask], self.spread[mask])

    def log_errors(self, values: Mapping[str, float]) -> Errors:
        """ln(predicted / measured) of every row with these constants."""
        known = {LATER: values["blackwell_fp8_pj"], **values}
        constants = Constants(**{f.name: known[f.name] for f in fields(Constants)})
        factors = np.array([values.get(f"release {name}", 0.0) for name in RELEASES])[self.release]
        predicted_s = price(replace(self.inputs, log_factor=factors), self.layouts, constants).step_s
        return np.asarray(np.log(predicted_s / self.measured_s))


def row_spread(run: MeasuredRun, unconfirmed: float = UNCONFIRMED) -> float:
    """ln by which a run may differ from similar runs."""
    return ROW_SPREAD_PCT.get(run.benchmark, 2.5) / 100 * (1.0 if run.wall_s else unconfirmed)


def fit(rows: Rows, start: Mapping[str, float] | None = None) -> dict[str, float]:
    """The value of every constant in FITTED that fits the rows best."""
    from scipy.optimize import least_squares

    expected = np.array([FITTED[name].expected for name in _NAMES])
    spread = np.array([FITTED[name].spread for name in _NAMES])
    low, high = (np.array([getattr(FITTED[name], side) for name in _NAMES]) for side in ("low", "high"))

    def values(x: NDArray[np.float64]) -> dict[str, float]:
        return dict(zip(_NAMES, (expected + x * spread).tolist(), strict=True))

    def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
        named = values(x)
        steps = np.diff([named.get(f"release {name}", 0.0) for name in RELEASES]) / RELEASE_STEP
        return np.concatenate([rows.log_errors(named) / rows.spread, EXPECTATION_WEIGHT * x, steps])

    bounds = ((low - expected) / spread, (high - expected) / spread)
    first = np.zeros(len(_NAMES)) if start is None else (np.array([start[name] for name in _NAMES]) - expected) / spread
    first = np.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9)
    found = least_squares(residuals, first, bounds=bounds, loss="soft_l1", f_scale=OUTLIER, x_scale="jac")
    return values(found.x)


def leave_one_out(runs: Sequence[MeasuredRun], start: Mapping[str, float], done: Callable[[], None] = lambda: None) -> Errors:
    """ln(predicted / measured) of every run, by a fit on all the others."""
    return _held_out(runs, start, [[i] for i in range(len(runs))], done)


def leave_family_out(runs: Sequence[MeasuredRun], start: Mapping[str, float], done: Callable[[], None] = lambda: None) -> Errors:
    """ln(predicted / measured) of every run, by a fit on all runs of other families.

    A release without a remaining run is predicted as its nearest relative.
    """
    families: dict[tuple[str, str, str], list[int]] = {}
    for i, run in enumerate(runs):
        families.setdefault(run.family, []).append(i)
    return _held_out(runs, start, list(families.values()), done)


def _held_out(runs: Sequence[MeasuredRun], start: Mapping[str, float], groups: list[list[int]], done: Callable[[], None]) -> Errors:
    rows, errors = Rows.of(runs), np.zeros(len(runs))
    for group in groups:
        kept = np.ones(len(runs), dtype=bool)
        kept[group] = False
        values = fit(rows.take(kept), start)
        _borrow_releases(values, rows.release[kept])
        errors[group] = rows.log_errors(values)[group]
        done()
    return errors


def _borrow_releases(values: dict[str, float], present: NDArray[np.int64]) -> None:
    """Give every release without a run the factor of its nearest relative that has one."""
    table = {RELEASES[i]: values.get(f"release {RELEASES[i]}", 0.0) for i in set(present.tolist())}
    for name in RELEASES:
        if name not in table and name != REFERENCE_RELEASE:
            values[f"release {name}"] = table[nearest_release(name, table)]
