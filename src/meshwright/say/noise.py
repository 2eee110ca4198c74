"""What a fit of the simulator's noise says: its constants, and simulated beside logged step times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.say.document import Block, Document, Table, Text
from meshwright.simulator.noise import MEANING, Noise
from meshwright.simulator.noise_fit import ASKED_FACTOR, Checked
from meshwright.units import per_cent

NAME_WIDTH = 58  # characters of a log's name in a table


def noise_document(constants: Noise, checked: Sequence[Checked], written: Sequence[tuple[str, Path]]) -> Document:
    """Constants fitted on all logs, and each log simulated with constants fitted without it; `written` has what each file is."""
    values = {
        "constants": {name: {"value": getattr(constants, name), "unit": unit, "meaning": words} for name, (unit, words) in MEANING.items()},
        **_figures(checked),
        "compared_logs": [_row(one) for one in checked],
        "files": [{"what": what, "path": str(path)} for what, path in written],
    }
    return Document(
        kind="noise", title="simulated against logged step times", blocks=tuple(_blocks(constants, checked, written)), values=values
    )


def _blocks(constants: Noise, checked: Sequence[Checked], written: Sequence[tuple[str, Path]]) -> Iterator[Block]:
    rows = tuple((name, f"{getattr(constants, name):.4g}", unit, meaning) for name, (unit, meaning) in MEANING.items())
    yield Table("eight constants, fitted on all logs", ("constant", "value>", "unit", "meaning"), rows)
    columns = ("log", "accelerators>", "median>", "simulated>", "error>", "spread>", "simulated>", "ratio>", "")
    yield Table("each log, simulated with constants fitted without it", columns, tuple(_cells(_row(one), one.is_near) for one in checked))
    found = _figures(checked)
    yield Text(f"Medians are off by {found['median_error_mean_pct']:.2f} % on average, {found['median_error_worst_pct']:.2f} % at most.")
    near = f"{found['num_spread_within_factor']} of {found['num_logs']} logs ({per_cent(found['share_spread_within_factor'], '.0f')})"
    yield Text(f"Robust standard deviations are within a factor of {ASKED_FACTOR:g} for {near}.")
    yield from (Text(f"wrote the {what}: {path}") for what, path in written)


def _figures(checked: Sequence[Checked]) -> dict[str, Any]:
    errors = [abs(one.median_error) for one in checked]
    near = sum(one.is_near for one in checked)
    return {
        "num_logs": len(checked),
        "median_error_mean_pct": 100 * float(np.mean(errors)),
        "median_error_worst_pct": 100 * max(errors),
        "num_spread_within_factor": near,
        "share_spread_within_factor": near / len(checked),
    }


def _row(one: Checked) -> dict[str, Any]:
    logged, simulated = one.log.times, one.simulated[0]
    later = one.log.first_steps[1:]
    return {
        "name": one.log.name,
        "num_accelerators": one.log.run.num_accelerators,
        "median_step_s": logged.median_s,
        "simulated_median_step_s": one.median_s,
        "median_error_pct": 100 * one.median_error,
        "robust_std_pct": logged.robust_std_pct,
        "simulated_robust_std_pct": one.robust_std_pct,
        "spread_ratio": one.spread_ratio,
        "first_step_s": float(logged.seconds[0]),
        "simulated_first_step_s": float(np.median([times.seconds[0] for times in one.simulated])),
        "after_evaluation_s": float(np.median(logged.seconds[later])) if len(later) else None,
        "simulated_after_evaluation_s": float(np.median(simulated.seconds[later])) if len(later) else None,
    }


def _cells(row: dict[str, Any], near: bool) -> tuple[str, ...]:
    return (
        row["name"].replace("_nemo", "").replace("_llama31", "")[:NAME_WIDTH],
        f"{row['num_accelerators']:,}",
        f"{row['median_step_s']:.3f} s",
        f"{row['simulated_median_step_s']:.3f} s",
        f"{row['median_error_pct']:+.2f} %",
        f"{row['robust_std_pct']:.3f} %",
        f"{row['simulated_robust_std_pct']:.3f} %",
        f"{row['spread_ratio']:.2f}",
        "" if near else f"beyond {ASKED_FACTOR:g}",
    )
