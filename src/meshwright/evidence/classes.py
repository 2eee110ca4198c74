"""The fit of software that was not tuned for a record, and of chips that are not in the joint fit.

A class of software has four effects relative to the reference release (all compute, attention, kernels that move bytes, the host that
launches a layer), and torchtitan a fifth (how much tensor traffic its overlap hides). A generation of chips has one or two, the early
Megatron-LM two (its attention is not fused), and products scaled by rows one. All are fitted together on their rows, with values expected
beforehand. The constants of the joint fit are not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layouts
from meshwright.predict.footprint import recipe_for
from meshwright.predict.inputs import Inputs, inputs_of, stacked, trainer_update_bytes
from meshwright.predict.practice import (
    EARLY,
    FSDP,
    MEGATRON,
    MESHWRIGHT,
    MLPERF,
    NEMO,
    TORCHTITAN,
    UNTUNED,
    Effects,
    class_of,
    further_effects,
)
from meshwright.predict.software import REFERENCE_RELEASE, Fitted, FittedValues, is_fitted
from meshwright.predict.step import price

SPREAD = 0.1  # ln: the expected distance of such rows from any model of this kind
ROWWISE = "fp8-rowwise"
NUDGE = 1e-4  # change of an effect, in spreads, from which its slope is computed
MOST_ROWS = 30  # rows of one release that count fully: more of them get less weight, so that one large table does not decide alone

_FACTOR = Fitted(meaning="time of all compute", unit="ln", expected=0.15, spread=0.15, low=-0.3, high=1.0)
_ATTENTION = Fitted(meaning="further time of attention", unit="ln", expected=0.3, spread=0.5, low=-0.5, high=2.0)
_MEMORY = Fitted(meaning="further time of kernels that move bytes", unit="ln", expected=0.3, spread=0.4, low=-0.5, high=2.0)
_HOST = Fitted(meaning="host time to launch a layer's forward pass", unit="s", expected=4e-4, spread=4e-4, low=0.0, high=5e-3)
_HIDDEN = Fitted(meaning="tensor traffic that its overlap hides", unit="fraction", expected=0.5, spread=0.3, low=0.0, high=1.0)
_EARLY_FACTOR = Fitted(meaning="time of all compute against later ones", unit="ln", expected=0.0, spread=0.15, low=-1.0, high=1.0)
_SCORES = Fitted(meaning="moved for each score of attention, forward", unit="bytes", expected=14.0, spread=6.0, low=0.0, high=40.0)
_ROWS = Fitted(meaning="further time of products scaled by rows", unit="ln", expected=0.3, spread=0.3, low=0.0, high=1.5)
_CHIP = Fitted(meaning="time of all compute", unit="ln", expected=0.0, spread=0.2, low=-1.0, high=1.5)
_CHIP_ATTENTION = Fitted(meaning="further time of attention", unit="ln", expected=0.0, spread=0.3, low=-1.0, high=1.0)

_KINDS = (MEGATRON, TORCHTITAN, FSDP, MESHWRIGHT)
_OF_CLASS = {"log_factor": _FACTOR, "log_attention": _ATTENTION, "log_memory": _MEMORY, "host_s": _HOST}
# (class or architecture, field of Effects) -> what it means
EFFECTS_FITTED: Mapping[tuple[str, str], Fitted] = {
    **{(kind, key): meaning for kind in _KINDS for key, meaning in _OF_CLASS.items()},
    (TORCHTITAN, "tp_hidden"): _HIDDEN,
    (EARLY, "log_factor"): _EARLY_FACTOR,
    (EARLY, "score_bytes"): _SCORES,
    (ROWWISE, "log_products"): _ROWS,
    ("ampere", "log_factor"): _CHIP,
    ("ampere", "log_attention"): _CHIP_ATTENTION,
    ("cdna3", "log_factor"): _CHIP,
    ("cdna4", "log_factor"): _CHIP,
}
_NAMES = tuple(EFFECTS_FITTED)
CHIPS = ("ampere", "cdna3", "cdna4")
FURTHER = (*CHIPS, EARLY, ROWWISE)  # their effects are added to those of a class
Errors = NDArray[np.float64]
Found = Mapping[tuple[str, str], float]


def class_rows(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Rows of dense models with software of such a class, or on such a chip."""
    return [run for run in runs if not run.model.experts and _is_own(run)]


def _is_own(run: MeasuredRun) -> bool:
    kind, chip = class_of(run.release), run.cluster.accelerator
    return (kind in _KINDS and (is_fitted(chip) or chip.architecture in CHIPS)) or (kind in (MLPERF, NEMO) and chip.architecture in CHIPS)


def _with_update(inputs: Inputs, run: MeasuredRun) -> Inputs:
    """The inputs of a run of meshwright's trainer with what its own update moves; others as they are."""
    if class_of(run.release) != MESHWRIGHT:
        return inputs
    return replace(inputs, update_bytes=trainer_update_bytes(recipe_for(run.workload.precision, run.cluster.accelerator)))


class ClassRows:
    """Such rows as columns, ready to be priced with any effects."""

    def __init__(self, runs: Sequence[MeasuredRun], values: FittedValues) -> None:
        bare = replace(values, classes={}, further={})
        self.runs, self.values = tuple(runs), values
        jobs = [run.job(bare.software(run.release if class_of(run.release) in (MLPERF, NEMO) else REFERENCE_RELEASE)) for run in runs]
        self.inputs: Inputs = stacked([_with_update(inputs_of(job), run) for job, run in zip(jobs, runs, strict=True)])
        self.layouts = Layouts.of([run.layout for run in runs])
        self.measured_s = np.array([run.measured_s for run in runs])
        self.kinds = [class_of(run.release) for run in runs]
        self.further = [further_effects(run.release, run.cluster.accelerator.architecture, run.workload.precision) for run in runs]
        beside = [{kind, *more} for kind, more in zip(self.kinds, self.further, strict=True)]
        self.touched = [np.array([name in names for names in beside]) for name, _ in _NAMES]  # rows, by effect
        self.apart = _apart(self.touched)
        counts = Counter(run.release for run in runs)
        self.weights = np.array([min(1.0, (MOST_ROWS / counts[run.release]) ** 0.5) for run in runs])

    def log_errors(self, found: Found) -> Errors:
        """ln(predicted / measured) of every row."""
        table = effects_of(found)
        none = Effects()
        own = [sum((table.get(name, none) for name in (kind, *more)), none) for kind, more in zip(self.kinds, self.further, strict=True)]
        columns = {key: np.array([getattr(one, key) for one in own]) for key in asdict(none) if key != "tp_hidden"}
        columns["tp_hidden"] = np.array([np.nan if one.tp_hidden is None else one.tp_hidden for one in own])
        columns["log_factor"] = columns["log_factor"] + np.asarray(self.inputs.log_factor)
        return np.asarray(np.log(price(replace(self.inputs, **columns), self.layouts, self.values.constants).step_s / self.measured_s))

    def fit(self, kept: NDArray[np.bool_] | None = None, start: Found | None = None) -> dict[tuple[str, str], float]:
        """The effects that fit the kept rows best."""
        from scipy.optimize import least_squares

        expected, spread, low, high = (
            np.array([getattr(EFFECTS_FITTED[name], key) for name in _NAMES]) for key in ("expected", "spread", "low", "high")
        )
        mask = np.ones(len(self.runs), dtype=bool) if kept is None else kept

        def values(x: NDArray[np.float64]) -> dict[tuple[str, str], float]:
            return dict(zip(_NAMES, (expected + x * spread).tolist(), strict=True))

        def of_rows(x: NDArray[np.float64]) -> Errors:
            return np.asarray(self.weights * self.log_errors(values(x)) / SPREAD)

        def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([of_rows(x)[mask], x])

        def slopes(x: NDArray[np.float64]) -> NDArray[np.float64]:
            """The change of every error with every effect. Effects without a common row are varied together: a third of the evaluations."""
            at, found = of_rows(x), np.zeros((len(self.runs), len(x)))
            for group in self.apart:
                moved = x.copy()
                moved[group] += np.where(x[group] + NUDGE > bounds[1][group], -NUDGE, NUDGE)
                change = of_rows(moved) - at
                for one in group:
                    found[:, one] = self.touched[one] * change / (moved[one] - x[one])
            return np.vstack([found[mask], np.eye(len(x))])

        bounds = (low - expected) / spread, (high - expected) / spread
        first = np.zeros(len(_NAMES)) if start is None else (np.array([start[name] for name in _NAMES]) - expected) / spread
        first = np.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9)
        return values(least_squares(residuals, first, slopes, bounds=bounds, loss="soft_l1").x)

    def unknown(self, start: Found) -> Errors:
        """ln(predicted / measured) of every row if nothing is known about its class, or about its chip.

        An unknown class gets the mean effects of the other classes that nobody tuned for a record.
        """
        errors = np.zeros(len(self.runs))
        strange = [kind if kind in _KINDS else more[0] for kind, more in zip(self.kinds, self.further, strict=True)]
        for name in dict.fromkeys(strange):
            out = np.array([one == name for one in strange])
            found = self.fit(~out, start)
            if name in _KINDS:
                others = [kind for kind in UNTUNED if kind != name]
                found |= {(name, key): float(np.mean([found[kind, key] for kind in others])) for key in _OF_CLASS}
                found |= {(EARLY, key): 0.0 for key in ("log_factor",)} if name == MEGATRON else {}
            errors[out] = self.log_errors(found)[out]
        return errors

    def left_out(self, key: Callable[[MeasuredRun], object], start: Found, done: Callable[[], None] = lambda: None) -> Errors:
        """ln(predicted / measured) of every row, by a fit without the rows that share its key."""
        names, errors = [key(run) for run in self.runs], np.zeros(len(self.runs))
        for name in dict.fromkeys(names):
            out = np.array([one == name for one in names])
            errors[out] = self.log_errors(self.fit(~out, start))[out]
            done()
        return errors


def _apart(touched: Sequence[NDArray[np.bool_]]) -> list[list[int]]:
    """Groups of effects; no two effects of a group have a row in common."""
    groups: list[list[int]] = []
    for one, rows in enumerate(touched):
        for group in groups:
            if not any((touched[other] & rows).any() for other in group):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def effects_of(found: Found) -> dict[str, Effects]:
    """The effects of each class and each generation of chips."""
    table: dict[str, dict[str, float]] = {}
    for (name, key), value in found.items():
        table.setdefault(name, {})[key] = value
    return {name: Effects(**values) for name, values in table.items()}
