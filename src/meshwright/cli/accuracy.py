"""Write the accuracy page: the targets of the predictor and its results, computed from the measured runs."""

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

    from meshwright.cli.fit import need_extra, need_folder, progress
    from meshwright.cli.show import show
    from meshwright.evidence.accuracy import headline
    from meshwright.evidence.accuracy_page import write_page
    from meshwright.files import check_ending
    from meshwright.say.fitting import accuracy_document

    check_ending(out, "the page", ".md")
    need_extra()
    need_folder(out.parent)
    with progress() as step:
        written = write_page(out, date.today().isoformat(), step)
    show(accuracy_document(headline(), written), as_json=as_json)
