"""Write the accuracy page: what was asked of the predictor and what it reaches, from the measured runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def accuracy(
    out: Annotated[Path, typer.Option(metavar="FILE", help="Page to write; its plot goes into a folder of the same name.")] = Path(
        "docs/accuracy.md"
    ),
    as_json: AsJson = False,
) -> None:
    """Write the accuracy page from the measured runs.

    Examples:

      meshwright accuracy

      meshwright accuracy --out accuracy.md --json
    """
    from datetime import date

    from meshwright.cli.fit import need_extra, need_folder, progress, show_figures
    from meshwright.cli.show import show_json, show_text
    from meshwright.evidence.accuracy import headline
    from meshwright.evidence.accuracy_page import write_page

    need_extra()
    need_folder(out.parent)
    with progress() as step:
        written = write_page(out, date.today().isoformat(), step)
    if as_json:
        show_json({"figures": headline(), "written": [str(path) for path in written]})
    else:
        show_figures(headline())
        show_text(f"written: {', '.join(str(path) for path in written)}")
