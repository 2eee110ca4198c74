"""The fit of what a mixture of experts costs besides its FLOPs and its bytes on the network, and errors on containers that are left out.

Eleven constants are fitted on pre-training rows of NVIDIA's containers and of MLPerf. Everything else (products, attention, networks,
releases) comes from the joint fit of dense models and is not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import numpy as np
from numpy.typing import NDArray

from meshwright.evidence.measured import MeasuredRun
from meshwright.layout import Layouts
from meshwright.predict.inputs import Inputs, inputs_of, stacked
from meshwright.predict.practice import MLPERF, NEMO, ExpertConstants, class_of
from meshwright.predict.software import Fitted, FittedValues, is_fitted
from meshwright.predict.step import price

SPREAD = 0.06  # ln: the expected distance of the rows of one container from any model of this kind
OUTLIER = 0.5  # residuals beyond this many spreads count by their size, not their square

EXPERTS_FITTED: Mapping[str, Fitted] = {
    "sync_s": Fitted(
        meaning="a layer with experts stands still, each way, while its host learns how many tokens each expert got",
        unit="s", expected=2e-3, spread=2e-3, low=0.0, high=1e-2,
    ),
    "router_share": Fitted(
        meaning="of that, with the router in a CUDA graph", unit="fraction", expected=0.5, spread=0.3, low=0.0, high=1.0
    ),
    "attention_share": Fitted(
        meaning="of that, with attention in a CUDA graph too", unit="fraction", expected=0.2, spread=0.2, low=0.0, high=1.0
    ),
    "all_to_all_s": Fitted(
        meaning="the same, of a plain all-to-all, whose sizes the host must know", unit="s", expected=2e-3, spread=2e-3, low=0.0, high=1e-2
    ),
    "hidden": Fitted(
        meaning="of the experts' traffic, hidden behind another micro-batch where it is overlapped", unit="fraction",
        expected=0.8, spread=0.2, low=0.0, high=1.0,
    ),
    "log_grouped": Fitted(
        meaning="time of the experts' grouped products over that of a dense product of their size", unit="ln",
        expected=0.1, spread=0.1, low=-0.3, high=1.0,
    ),
    "log_fused": Fitted(
        meaning="the same, fused with the activation (from container 26.06)", unit="ln", expected=0.1, spread=0.1, low=-0.3, high=1.0
    ),
    "moved_bytes": Fitted(
        meaning="moved for an element that goes to an expert and back, each way", unit="bytes",
        expected=16.0, spread=10.0, low=4.0, high=60.0,
    ),
    "fused_moved_bytes": Fitted(
        meaning="the same with fused products", unit="bytes", expected=12.0, spread=10.0, low=4.0, high=60.0
    ),
    "bias_bytes": Fitted(
        meaning="moved for an element of the experts' hidden layer by biases that no kernel fuses", unit="bytes",
        expected=40.0, spread=40.0, low=0.0, high=300.0,
    ),
    "fused_bias_bytes": Fitted(
        meaning="the same with fused products", unit="bytes", expected=20.0, spread=30.0, low=0.0, high=300.0
    ),
}  # fmt: skip

_NAMES = tuple(EXPERTS_FITTED)
Errors = NDArray[np.float64]


def mixtures(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Pre-training rows on mixtures of experts with software and chips that have factors."""
    return [
        run
        for run in runs
        if run.model.experts and run.kind == "pretrain" and class_of(run.release) in (MLPERF, NEMO) and is_fitted(run.cluster.accelerator)
    ]


class Mixtures:
    """Rows on mixtures of experts as columns, ready to be priced with any constants."""

    def __init__(self, runs: Sequence[MeasuredRun], values: FittedValues) -> None:
        self.runs, self.values = tuple(runs), values
        self.inputs: Inputs = stacked([inputs_of(run.job(values.software(run.release))) for run in runs])
        self.practices = [run.job(values.software(run.release)).practice for run in runs]
        self.layouts = Layouts.of([run.layout for run in runs])
        self.measured_s = np.array([run.measured_s for run in runs])

    def log_errors(self, constants: ExpertConstants) -> Errors:
        """ln(predicted / measured) of every row."""
        own = [constants.inputs(used, has_biases=run.model.biases) for run, used in zip(self.runs, self.practices, strict=True)]
        columns = {name: np.array([one[name] for one in own]) for name in own[0]}
        return np.asarray(np.log(price(replace(self.inputs, **columns), self.layouts, self.values.constants).step_s / self.measured_s))

    def fit(self, kept: NDArray[np.bool_] | None = None, start: ExpertConstants | None = None) -> ExpertConstants:
        """The constants that fit the kept rows best."""
        from scipy.optimize import least_squares

        expected, spread, low, high = (np.array([getattr(EXPERTS_FITTED[name], key) for name in _NAMES]) for key in _KEYS)
        mask = np.ones(len(self.runs), dtype=bool) if kept is None else kept

        def residuals(x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.concatenate([self.log_errors(_constants(expected + x * spread))[mask] / SPREAD, x])

        bounds = (low - expected) / spread, (high - expected) / spread
        first = np.zeros(len(_NAMES)) if start is None else (np.array([getattr(start, name) for name in _NAMES]) - expected) / spread
        found = least_squares(residuals, np.clip(first, bounds[0] + 1e-9, bounds[1] - 1e-9), bounds=bounds, loss="soft_l1", f_scale=OUTLIER)
        return _constants(expected + found.x * spread)

    def row_out(self, found: ExpertConstants) -> Errors:
        """ln(predicted / measured) of every row by a fit without it, to first order: a row's error divided by one minus its leverage."""
        spread = np.array([EXPERTS_FITTED[name].spread for name in _NAMES])
        at = np.array([getattr(found, name) for name in _NAMES])
        errors = self.log_errors(found)
        slopes = np.stack([(self.log_errors(_constants(at + 1e-3 * step)) - errors) / 1e-3 for step in np.diag(spread)], axis=1) / SPREAD
        inverse = np.linalg.inv(slopes.T @ slopes + np.eye(len(_NAMES)))
        leverage = np.einsum("ij,jk,ik->i", slopes, inverse, slopes)
        return np.asarray(errors / (1 - np.clip(leverage, 0.0, 0.95)))

    def left_out(self, key: Callable[[MeasuredRun], str], start: ExpertConstants, done: Callable[[], None] = lambda: None) -> Errors:
        """ln(predicted / measured) of every row by a fit without the rows that share its key."""
        names, errors = np.array([key(run) for run in self.runs]), np.zeros(len(self.runs))
        for name in dict.fromkeys(names.tolist()):
            out = names == name
            errors[out] = self.log_errors(self.fit(~out, start))[out]
            done()
        return errors


_KEYS = ("expected", "spread", "low", "high")


def _constants(values: NDArray[np.float64]) -> ExpertConstants:
    return ExpertConstants(**dict(zip(_NAMES, values.tolist(), strict=True)))


def as_entries(constants: ExpertConstants) -> dict[str, dict[str, object]]:
    """The constants as `constants.json` has them: value, unit, meaning, bounds and what was expected."""
    return {
        name: {
            "value": value,
            "unit": EXPERTS_FITTED[name].unit,
            "meaning": EXPERTS_FITTED[name].meaning,
            "bounds": [EXPERTS_FITTED[name].low, EXPERTS_FITTED[name].high],
            "expected": [EXPERTS_FITTED[name].expected, EXPERTS_FITTED[name].spread],
        }
        for name, value in asdict(constants).items()
    }
