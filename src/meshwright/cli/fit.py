"""Fit the constants that data sheets do not give, and the residuals from which intervals are computed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson

POWER = "power_constants.json"  # written only next to the constants of the package
WRITTEN = ("constants.json", "residuals.json", POWER)


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

    from meshwright.cli.show import show
    from meshwright.evidence.accuracy import evidence_with, time_figures
    from meshwright.evidence.refit import HERE, MEASURED_CSV, PUBLISHED_CSV, refit
    from meshwright.predict.software import values_of
    from meshwright.say.fitting import fit_document

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
    written = [folder / name for name in WRITTEN if folder == HERE or name != POWER]
    show(fit_document(found.constants, figures, written), as_json=as_json)


def _refit_power() -> None:
    """Fit node power again, because it depends on how busy accelerators are, which the constants just written predict."""
    from meshwright.evidence.power import write_power_constants
    from meshwright.predict.software import fitted_values
    from meshwright.predict.uncertainty import residuals

    fitted_values.cache_clear()
    residuals.cache_clear()
    write_power_constants()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Print on a terminal what is being done; print nothing if the output goes elsewhere."""
    from rich.console import Console

    with Console(stderr=True, force_terminal=False if os.environ.get("NO_COLOR") else None).status("reading the runs") as status:
        yield status.update


def need_extra() -> None:
    """Raise an error if the extra `fit` is not installed."""
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
    """Raise an error for a folder that does not exist or cannot be written, before minutes of work."""
    import os

    from meshwright.errors import InputError

    if not folder.is_dir():
        what = "this is not a folder" if folder.exists() else "the folder does not exist"
        raise InputError(what, where=f"--out {folder}", fix="make the folder first, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError("the folder cannot be written to", where=f"--out {folder}", fix="name a folder that can be written")
