"""Ask a run that trains for another number of replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def scale(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that trains with --keep-going.")],
    dp: Annotated[int, typer.Option("--dp", metavar="N", min=1, help="Replicas that the run should have.")],
    as_json: AsJson = False,
) -> None:
    """Let replicas join or leave a run at a step boundary; the batch stays as it is.

    Examples:

      meshwright scale runs/first --dp 4
    """
    from meshwright.cli.show import show
    from meshwright.cli.scale_run import asked

    show(asked(run, dp), as_json=as_json)
