"""How right the simulator is about real logs, each predicted by constants fitted without it; and the fit of those constants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from meshwright.cli.options import AsJson

if TYPE_CHECKING:
    from meshwright.simulator.noise import Noise
    from meshwright.simulator.noise_fit import Checked


def noise(
    fit: Annotated[bool, typer.Option("--fit", help="Write the constants fitted on all logs.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the constants; default: the package's.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page of simulated and logged distributions.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Number of simulated runs of each log.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Fit the simulator's noise, and compare simulated with logged step times.

    Examples:

      meshwright noise --html noise.html

      meshwright noise --fit --out noise.json --seeds 1 --json
    """
    from datetime import date

    from meshwright.cli.fit import need_extra
    from meshwright.cli.noise_page import write_page
    from meshwright.cli.progress import progress_bar
    from meshwright.files import write_whole
    from meshwright.simulator.logs import step_logs
    from meshwright.simulator.noise import CONSTANTS_FILE
    from meshwright.simulator.noise_fit import NoiseFit, json_text

    need_extra()
    with progress_bar() as progress:
        logs = step_logs()
        fitting = NoiseFit(logs, progress)
        values = fitting.fitted()
        if fit:
            said = f"{len(logs)} step-time logs of MLPerf Training v3.0-v6.0, and the spread between runs of measured rows"
            write_whole(out or CONSTANTS_FILE, json_text(values, said, date.today().isoformat()))
        checked = []
        for number in range(len(logs)):
            checked.append(fitting.checked(number, range(1, seeds + 1)))
            progress("simulating logs", number + 1, len(logs))
    if html:
        write_page(html, checked)
    _show_json(values, checked) if as_json else _show(values, checked)


def _figures(checked: Sequence[Checked]) -> dict[str, Any]:
    import numpy as np

    errors = [abs(one.median_error) for one in checked]
    return {
        "num_logs": len(checked),
        "median_error_mean_pct": 100 * float(np.mean(errors)),
        "median_error_worst_pct": 100 * max(errors),
        "num_spread_within_factor": sum(one.is_near for one in checked),
        "share_spread_within_factor": sum(one.is_near for one in checked) / len(checked),
    }


def _row(one: Checked) -> dict[str, Any]:
    import numpy as np

    logged, simulated = one.log.times, one.simulated[0]
    later = one.log.first_steps[1:]
    return {
        "log": one.log.name,
        "num_accelerators": one.log.run.num_accelerators,
        "median_s": logged.median_s,
        "simulated_median_s": one.median_s,
        "median_error_pct": 100 * one.median_error,
        "robust_std_pct": logged.robust_std_pct,
        "simulated_robust_std_pct": one.robust_std_pct,
        "spread_ratio": one.spread_ratio,
        "first_step_s": float(logged.seconds[0]),
        "simulated_first_step_s": float(np.median([times.seconds[0] for times in one.simulated])),
        "after_evaluation_s": float(np.median(logged.seconds[later])) if len(later) else None,
        "simulated_after_evaluation_s": float(np.median(simulated.seconds[later])) if len(later) else None,
    }


def _show_json(values: Noise, checked: Sequence[Checked]) -> None:
    from meshwright.cli.show import show_json

    show_json({"constants": values, **_figures(checked), "logs": [_row(one) for one in checked]})


def _show(values: Noise, checked: Sequence[Checked]) -> None:
    from meshwright.cli.show import show_table, show_text
    from meshwright.simulator.noise import MEANING

    rows = [(name, f"{getattr(values, name):.4g}", unit, meaning) for name, (unit, meaning) in MEANING.items()]
    show_table("eight constants, fitted on all logs", ("constant", "value>", "unit", "meaning"), rows)
    columns = ("log", "accelerators>", "median>", "simulated>", "error>", "spread>", "simulated>", "ratio>", "")
    show_table("each log, simulated with constants fitted without it", columns, [_cells(_row(one), one.is_near) for one in checked])
    found = _figures(checked)
    show_text(f"Medians are off by {found['median_error_mean_pct']:.2f} % on average, {found['median_error_worst_pct']:.2f} % at most.")
    show_text(
        f"Robust standard deviations are within a factor of 1.5 for {found['num_spread_within_factor']} of {found['num_logs']} logs "
        f"({found['share_spread_within_factor']:.0%})."
    )


def _cells(row: dict[str, Any], near: bool) -> tuple[str, ...]:
    return (
        row["log"].replace("_nemo", "").replace("_llama31", "")[:58],
        f"{row['num_accelerators']:,}",
        f"{row['median_s']:.3f} s",
        f"{row['simulated_median_s']:.3f} s",
        f"{row['median_error_pct']:+.2f} %",
        f"{row['robust_std_pct']:.3f} %",
        f"{row['simulated_robust_std_pct']:.3f} %",
        f"{row['spread_ratio']:.2f}",
        "" if near else "beyond 1.5",
    )
