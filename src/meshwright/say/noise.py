"""The document of a fit of the simulator's noise: its constants, and simulated next to logged step times."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.say.document import Block, Document, Table, Text
from meshwright.simulator.noise import MEANING
from meshwright.simulator.noise_classes import CLASSES, COMMON, FittedNoise
from meshwright.simulator.noise_fit import ASKED_FACTOR, LONG_FACTOR, LONG_SHARE, Checked
from meshwright.units import per_cent

NAME_WIDTH = 44  # characters of a log's name in a table


def noise_document(
    fitted: FittedNoise, checked: Sequence[Checked], without_machine: Sequence[Checked], written: Sequence[tuple[str, Path]]
) -> Document:
    """Constants fitted on all logs, and each log simulated with constants fitted without it, and without any log of its machine.

    `written` has what each file is.
    """
    common = fitted.classes[COMMON]
    values = {
        "constants": {name: {"value": getattr(common, name), "unit": unit, "meaning": words} for name, (unit, words) in MEANING.items()},
        "noise_classes": [
            {"name": name, "meaning": CLASSES[name], "num_logs": fitted.num_logs[name], "noise": asdict(noise)}
            for name, noise in fitted.classes.items()
        ],
        "median_error_mean_pct": 100 * float(np.mean([abs(one.median_error) for one in checked])),
        "median_error_worst_pct": 100 * max(abs(one.median_error) for one in checked),
        **_figures(checked),
        "without_machines": _figures(without_machine),
        "compared_logs": [_row(one, other) for one, other in zip(checked, without_machine, strict=True)],
        "files": [{"what": what, "path": str(path)} for what, path in written],
    }
    blocks = tuple(_blocks(fitted, values, checked, written))
    return Document(kind="noise", title="simulated against logged step times", blocks=blocks, values=values)


def _blocks(
    fitted: FittedNoise, values: dict[str, Any], checked: Sequence[Checked], written: Sequence[tuple[str, Path]]
) -> Iterator[Block]:
    names = tuple(fitted.classes)
    rows = tuple((name, *(f"{getattr(fitted.classes[each], name):.3g}" for each in names), unit) for name, (unit, _) in MEANING.items())
    logs = ("logs", *(f"{fitted.num_logs[each]}" for each in names), "")
    yield Table("constants by class of runs, fitted on all logs", ("constant", *(f"{name}>" for name in names), "unit"), (logs, *rows))
    yield from (Text(f"{name}: {CLASSES[name]}.") for name in names)
    columns = (
        "log",
        "median>",
        "error>",
        "spread>",
        "simulated>",
        "80 % of runs>",
        "ratio>",
        "long>",
        "expected>",
        "first>",
        "simulated>",
        "",
    )
    cells = tuple(_cells(row, one) for row, one in zip(values["compared_logs"], checked, strict=True))
    yield Table("each log, simulated with constants fitted without it", columns, cells)
    errors = f"{values['median_error_mean_pct']:.2f} % on average, {values['median_error_worst_pct']:.2f} % at most"
    yield Text(f"Medians are off by {errors}.")
    yield from (Text(line) for line in verdicts(values))
    yield from (Text(f"wrote the {what}: {path}") for what, path in written)


def verdicts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The results in words, with logs left out in turn and with machines left out in turn."""
    other, total = values["without_machines"], values["num_logs"]

    def both(key: str) -> str:
        share, other_share = (per_cent(each[key] / total, ".0f") for each in (values, other))
        return f"{values[key]} of {total} logs ({share}); without the log's machine {other[key]} ({other_share})"

    return (
        f"The robust standard deviation of a typical run is within a factor of {ASKED_FACTOR:g} for {both('num_spread_within_factor')}.",
        f"The logged one is among those of 80 % of runs for {both('num_spread_inside')}.",
        f"Steps beyond {1 + LONG_SHARE:g} medians are as many as expected, within a factor of {LONG_FACTOR:g} or chance, "
        f"for {both('num_long_compatible')}.",
        f"First steps are within a factor of {LONG_FACTOR:g} for {both('num_first_within_factor')}.",
    )


def _figures(checked: Sequence[Checked]) -> dict[str, Any]:
    near = sum(one.is_near for one in checked)
    return {
        "num_logs": len(checked),
        "num_spread_within_factor": near,
        "share_spread_within_factor": near / len(checked),
        "num_spread_inside": sum(one.is_inside for one in checked),
        "num_long_compatible": sum(one.is_long_near for one in checked),
        "num_first_within_factor": sum(one.is_first_near for one in checked),
    }


def _row(one: Checked, without_machine: Checked) -> dict[str, Any]:
    logged, simulated = one.log.times, one.simulated[0]
    later = one.log.first_steps[1:]
    low_pct, high_pct = one.robust_std_80_pct
    return {
        "name": one.log.name,
        "num_accelerators": one.log.run.num_accelerators,
        "median_step_s": logged.median_s,
        "simulated_median_step_s": one.median_s,
        "median_error_pct": 100 * one.median_error,
        "robust_std_pct": logged.robust_std_pct,
        "simulated_robust_std_pct": one.robust_std_pct,
        "simulated_robust_std_low_pct": low_pct,
        "simulated_robust_std_high_pct": high_pct,
        "spread_ratio": one.spread_ratio,
        "spread_ratio_without_machine": without_machine.spread_ratio,
        "num_long_steps": one.num_long,
        "expected_long_steps": one.expected_long,
        "first_step_s": float(logged.seconds[0]),
        "simulated_first_step_s": one.first_step_s,
        "after_evaluation_s": float(np.median(logged.seconds[later])) if len(later) else None,
        "simulated_after_evaluation_s": float(np.median(simulated.seconds[later])) if len(later) else None,
    }


def _cells(row: dict[str, Any], one: Checked) -> tuple[str, ...]:
    missed = {"spread": one.is_near, "long": one.is_long_near, "first": one.is_first_near}
    return (
        row["name"].replace("_nemo", "").replace("_llama31", "")[:NAME_WIDTH],
        f"{row['median_step_s']:.3f} s",
        f"{row['median_error_pct']:+.2f} %",
        f"{row['robust_std_pct']:.3f} %",
        f"{row['simulated_robust_std_pct']:.3f} %",
        f"{row['simulated_robust_std_low_pct']:.3f} to {row['simulated_robust_std_high_pct']:.3f}",
        f"{row['spread_ratio']:.2f}",
        f"{row['num_long_steps']}",
        f"{row['expected_long_steps']:.2f}",
        f"{row['first_step_s']:.2f} s",
        f"{row['simulated_first_step_s']:.2f} s",
        " ".join(what for what, near in missed.items() if not near),
    )
