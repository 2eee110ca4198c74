"""The steps of a run in a few numbers: median, spread and drift of the steady steps, and their mean parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.errors import InputError
from meshwright.record.entries import PARTS
from meshwright.record.run import Run

MAD_TO_STD = 1 / NormalDist().inv_cdf(0.75)  # of a normal distribution


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """The steps of a run in a few numbers. Steady steps follow another step, with nothing between them."""

    num_steps: int
    num_steady_steps: int
    median_step_s: float  # of the steady steps, like all values down to drift_pct: this is called the step time of a run
    mean_step_s: float  # the mean parts and the unaccounted time add up to it
    robust_std_pct: float  # in per cent of the median, by the median absolute deviation, which ignores stalls
    p99_over_p50: float
    worst_step_s: float  # of all steps
    drift_pct: float  # median of the last tenth compared with that of the first tenth
    mean_parts_s: Mapping[str, float]  # of the steady steps, by part; a part that no step names is absent
    mean_exposed_s: Mapping[str, float]  # by axis: tp, cp, pp, dp, ep
    unaccounted_s: float  # of the mean steady step, belonging to no part
    tokens_per_s: float | None  # tokens of the steady steps divided by their time; None if the header has no sequence length


def summary_of(run: Run) -> Summary:
    """The steps of a run in a few numbers; an error if it has none."""
    if not run.records:
        raise InputError(
            "the run has no step yet", where=str(run.folder), fix="wait for its first step, or continue it: `meshwright train --resume`"
        )
    columns = run.columns
    all_s = columns["step_s"]
    steady = run.is_steady if run.is_steady.any() else np.ones(len(all_s), dtype=bool)
    step_s = all_s[steady]
    median_s = float(np.median(step_s))
    tenth = math.ceil(len(step_s) / 10)
    parts_s = {part: float(np.nanmean(columns[f"{part}_s"][steady])) for part in PARTS if _known(columns, f"{part}_s", steady)}
    return Summary(
        num_steps=len(all_s),
        num_steady_steps=len(step_s),
        median_step_s=median_s,
        mean_step_s=float(np.mean(step_s)),
        robust_std_pct=_pct(MAD_TO_STD * float(np.median(np.abs(step_s - median_s))), median_s),
        p99_over_p50=float(np.percentile(step_s, 99)) / median_s if median_s else math.nan,
        worst_step_s=float(np.max(all_s)),
        drift_pct=_pct(float(np.median(step_s[-tenth:]) - np.median(step_s[:tenth])), float(np.median(step_s[:tenth]))),
        mean_parts_s=parts_s,
        mean_exposed_s={part.removeprefix("exposed_"): value for part, value in parts_s.items() if part.startswith("exposed_")},
        unaccounted_s=float(np.mean(step_s)) - sum(parts_s.values()),
        tokens_per_s=_tokens_per_s(run, steady),
    )


def _known(columns: Mapping[str, NDArray[Any]], name: str, steady: NDArray[np.bool_]) -> bool:
    return name in columns and not bool(np.isnan(columns[name][steady]).all())


def _pct(value: float, of: float) -> float:
    return 100 * value / of if of else math.nan


def _tokens_per_s(run: Run, steady: NDArray[np.bool_]) -> float | None:
    """Tokens per second of the steady steps. The first record does not count, because its samples may be those of an earlier start."""
    if run.header.sequence_length is None or len(run.records) < 2:
        return None
    columns, counted = run.columns, steady[1:]
    samples = float(np.sum((np.diff(columns["samples"]) / np.diff(columns["step"]))[counted]))
    seconds = float(np.sum(columns["step_s"][1:][counted]))
    return samples * run.header.sequence_length / seconds if seconds else None
