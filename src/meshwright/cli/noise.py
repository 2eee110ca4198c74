"""Fit the noise of the simulator, and compare it with real logs, each simulated with constants fitted without the log or its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def noise(
    fit: Annotated[bool, typer.Option("--fit", help="Write the constants fitted on all logs.")] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the constants; default: the package's.", show_default=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page of simulated and logged distributions.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Number of simulated runs of each log.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Fit the simulator's noise, and compare simulated with logged step times.

    Examples:

      meshwright noise --html noise.html

      meshwright noise --fit --out noise.json --seeds 1 --json
    """
    from datetime import date

    from meshwright.cli.noise_page import write_page
    from meshwright.cli.progress import progress_bar
    from meshwright.cli.show import show
    from meshwright.files import check_target, write_whole
    from meshwright.say.noise import noise_document, verdicts
    from meshwright.simulator.logs import step_logs
    from meshwright.simulator.noise_classes import CONSTANTS_FILE, json_text
    from meshwright.simulator.noise_fit import NoiseFit

    check_target(out, "the file of constants", ".json")
    check_target(html, "the page", ".html", ".htm")
    written: list[tuple[str, Path]] = []
    with progress_bar() as progress:
        logs = step_logs()
        fitting = NoiseFit(logs, progress)
        values = fitting.fitted()
        if fit:
            path = out or CONSTANTS_FILE
            fitted_on = f"{len(logs)} step-time logs of MLPerf Training v3.0-v6.0, and what rows of measured runs state of spreads"
            write_whole(path, json_text(values, fitted_on, date.today().isoformat()))
            written.append(("constants", path))
        checked, without_machine = [], []
        for number in range(len(logs)):
            checked.append(fitting.checked(number, range(1, seeds + 1)))
            without_machine.append(fitting.checked_without_machine(number, range(1, seeds + 1)))
            progress("simulating logs", number + 1, len(logs))
    if html:
        written.append(("page", html))
    document = noise_document(values, checked, without_machine, written)
    if html:
        write_page(html, checked, verdicts(document.values))
    show(document, as_json=as_json)
