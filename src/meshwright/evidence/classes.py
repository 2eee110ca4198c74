"""The fit of software that nobody tuned for a record, and of chips that the joint fit leaves out.

A class of software has four effects on the reference release (all compute, attention, kernels that move bytes, the host that launches a
layer), and torchtitan a fifth (how much tensor traffic its overlap hides); a generation of chips has one or two. All are fitted at once
on the rows of their own, with values expected beforehand. The constants of the joint fit stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layouts
from meshwright.predict.inputs import Inputs, inputs_of, stacked
from meshwright.predict.practice import FSDP, MEGATRON, MLPERF, NEMO, TORCHTITAN, Effects, class_of
from meshwright.predict.software import REFERENCE_RELEASE, TP_HIDDEN, Fitted, FittedValues, is_fitted
from meshwright.predict.step import price

SPREAD = 0.1  # ln by which such rows differ from what any such model can say
MOST_ROWS = 30  # of one release: more of them count no more together, or one big table would decide alone

_FACTOR = Fitted(meaning="time of all compute", unit="ln", expected=0.15, spread=0.15, low=-0.3, high=1.0)
_ATTENTION = Fitted(meaning="further time of attention", unit="ln", expected=0.3, spread=0.5, low=-0.5, high=2.0)
_MEMORY = Fitted(meaning="further time of kernels that move bytes", unit="ln", expected=0.3, spread=0.4, low=-0.5, high=2.0)
_HOST = Fitted(meaning="host time to launch a layer's forward pass", unit="s", expected=4e-4, spread=4e-4, low=0.0, high=5e-3)
_HIDDEN = Fitted(meaning="tensor traffic that its overlap hides", unit="fraction", expected=0.5, spread=0.3, low=0.0, high=1.0)
_CHIP = Fitted(meaning="time of all compute", unit="ln", expected=0.0, spread=0.2, low=-1.0, high=1.5)
_CHIP_ATTENTION = Fitted(meaning="further time of attention", unit="ln", expected=0.0, spread=0.3, low=-1.0, high=1.0)

_OF_CLASS = {"log_factor": _FACTOR, "log_attention": _ATTENTION, "log_memory": _MEMORY, "host_s": _HOST}
# (class or architecture, field of Effects) -> what it means
EFFECTS_FITTED: Mapping[tuple[str, str], Fitted] = {
    **{(kind, key): meaning for kind in (MEGATRON, TORCHTITAN, FSDP) for key, meaning in _OF_CLASS.items()},
    (TORCHTITAN, "tp_hidden"): _HIDDEN,
    ("ampere", "log_factor"): _CHIP,
    ("ampere", "log_attention"): _CHIP_ATTENTION,
    ("cdna3", "log_factor"): _CHIP,
    ("cdna4", "log_factor"): _CHIP,
}
_NAMES = tuple(EFFECTS_FITTED)
CHIPS = ("ampere", "cdna3", "cdna4")
Errors = NDArray[np.float64]
Found = Mapping[tuple[str, str], float]


def class_rows(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Rows of dense models with software of such a class, or on such a chip."""
    return [run for run in runs if not run.model.experts and _is_own(run)]


def _is_own(run: MeasuredRun) -> bool:
    kind, chip = class_of(run.release), run.cluster.accelerator
    return (kind in (MEGATRON, TORCHTITAN, FSDP) and (is_fitted(chip) or chip.architecture in CHIPS)) or (
        kind in (MLPERF, NEMO) and chip.architecture in CHIPS
    )


class ClassRows:
    """Such rows as columns, ready to be priced with any effects."""

    def __init__(self, runs: Sequence[MeasuredRun], values: FittedValues) -> None:
        bare = replace(values, classes={}, chips={})
        self.runs, self.values = tuple(runs), values
        jobs = [run.job(bare.software(run.release if class_of(run.release) in (MLPERF, NEMO) else REFERENCE_RELEASE)) for run in runs]
        self.inputs: Inputs = stacked([inputs_of(job) for job in jobs])
        self.layouts = Layouts.of([run.layout for run in runs])
        self.measured_s = np.array([run.measured_s for run in runs])
        self.kinds = [class_of(run.release) for run in runs]
        self.chips = [run.cluster.accelerator.architecture for run in runs]
        counts = Counter(run.release for run in runs)
        self.weights = np.array([min(1.0, (MOST_ROWS / counts[run.release]) ** 0.5) for run in runs])

    def log_errors(self, found: Found) -> Errors:
        """ln(predicted / measured) of every row."""
        table = effects_of(found)
        none = Effects()
        own = [table.get(kind, none) + table.get(chip, none) for kind, chip in zip(self.kinds, self.chips, strict=True)]
        columns = {key: np.array([getattr(one, key) for one in own]) for key in asdict(none) if key != "tp_hidden"}
        columns["tp_hidden"] = np.array([TP_HIDDEN if one.tp_hidden is None else one.tp_hidden for one in own])
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

        def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([(self.weights * self.log_errors(values(x)))[mask] / SPREAD, x])

        bounds = (low - expected) / spread, (high - expected) / spread
        first = np.zeros(len(_NAMES)) if start is None else (np.array([start[name] for name in _NAMES]) - expected) / spread
        first = np.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9)
        return values(least_squares(residuals, first, bounds=bounds, loss="soft_l1").x)

    def left_out(self, key: Callable[[MeasuredRun], object], start: Found, done: Callable[[], None] = lambda: None) -> Errors:
        """ln(predicted / measured) of every row by a fit without the rows that share its key."""
        names, errors = [key(run) for run in self.runs], np.zeros(len(self.runs))
        for name in dict.fromkeys(names):
            out = np.array([one == name for one in names])
            errors[out] = self.log_errors(self.fit(~out, start))[out]
            done()
        return errors


def effects_of(found: Found) -> dict[str, Effects]:
    """The effects of each class and each generation of chips."""
    table: dict[str, dict[str, float]] = {}
    for (name, key), value in found.items():
        table.setdefault(name, {})[key] = value
    return {name: Effects(**values) for name, values in table.items()}
