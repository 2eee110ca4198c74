"""Fit the constants that data sheets do not give, and the residuals that intervals are made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from meshwright.cli.options import AsJson

WRITTEN = ("constants.json", "residuals.json", "power_constants.json")  # the last only beside the package's own

if TYPE_CHECKING:
    from meshwright.evidence.accuracy import Figure
    from meshwright.evidence.refit import Refit


def fit(
    measured: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of MLPerf submissions; default: the package's.", show_default=False)
    ] = None,
    published: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of published tables; default: the package's.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for constants and residuals; default: the package's.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fit all constants on measured runs, leaving out each run and each family in turn.

    Examples:

      meshwright fit

      meshwright fit --measured runs.csv --out fitted --json
    """
    from datetime import date

    from meshwright.cli.show import show_json
    from meshwright.evidence.accuracy import evidence_with, time_figures
    from meshwright.evidence.refit import HERE, MEASURED_CSV, PUBLISHED_CSV, refit
    from meshwright.predict.software import values_of

    need_extra()
    files, folder = (measured or MEASURED_CSV, published or PUBLISHED_CSV), out or HERE
    need_folder(folder)
    with progress() as step:
        found = refit(*files, date.today().isoformat(), step)
        found.write(folder)
        if folder == HERE:
            step("power of nodes")
            _refit_power()
    figures = time_figures(evidence_with(values_of(found.constants), *files), found.residuals)
    if as_json:
        written = [str(folder / name) for name in WRITTEN if folder == HERE or name != "power_constants.json"]
        show_json({**found.constants, "num_constants": len(found.constants["constants"]), "figures": figures, "written": written})
    else:
        _show(found, figures, folder)


def _refit_power() -> None:
    """Fit node power again: what it takes for busy is predicted with the constants just written."""
    from meshwright.evidence.power import write_power_constants
    from meshwright.predict.software import fitted_values
    from meshwright.predict.uncertainty import residuals

    fitted_values.cache_clear()
    residuals.cache_clear()
    write_power_constants()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being done; nothing where the output goes elsewhere."""
    from rich.console import Console

    with Console(stderr=True, force_terminal=False if os.environ.get("NO_COLOR") else None).status("reading the runs") as status:
        yield status.update


def need_extra() -> None:
    """Refuse where the extra `fit` is not installed."""
    from importlib.util import find_spec

    from meshwright.errors import InputError

    missing = [name for name in ("scipy", "matplotlib") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"this needs {' and '.join(missing)}",
            where="the extra `fit`",
            fix="pip install '.[fit]' in the project's folder, or 'meshwright[fit]'",
        )


def need_folder(folder: Path) -> None:
    """Refuse a folder that is not there or cannot be written: minutes later would be too late."""
    import os

    from meshwright.errors import InputError

    if not folder.is_dir():
        what = "that is no folder" if folder.exists() else "no such folder"
        raise InputError(what, where=f"--out {folder}", fix="make the folder first, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("the folder cannot be written to", where=f"--out {folder}", fix="name a folder that can be written")


def _show(found: Refit, figures: Sequence[Figure], folder: Path) -> None:
    from meshwright.cli.show import show_table, show_text

    cells = [
        (name, f"{one['value']:.4g}", one["unit"], _pair(one["expected"], " +- "), _pair(one["bounds"], " - "), one["meaning"])
        for name, one in found.constants["constants"].items()
    ]
    show_table(f"{len(cells)} fitted constants", ("constant", "value>", "unit", "expected", "bounds", "meaning"), cells)
    show_text(f"fitted on {found.constants['fitted_on']}\n")
    show_figures(figures)
    show_text(f"written: {folder / 'constants.json'}, {folder / 'residuals.json'}")


def _pair(values: Sequence[float], between: str) -> str:
    return between.join(f"{value:g}" for value in values)


def show_figures(figures: Sequence[Figure]) -> None:
    """Print what was asked and what is reached."""
    from meshwright.cli.show import show_table

    cells = [(figure.name, figure.asked, figure.said, "" if figure.is_met else "missed") for figure in figures]
    show_table("asked and reached", ("", "asked", "reached>", ""), cells)
