"""What a run cost: accelerator-seconds by state, money to the cent, energy, carbon and water."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from meshwright.cli.options import AsJson, RegionName


def ledger(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of `meshwright train` or `meshwright simulate`, or its URL.")],
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every entry to this file, as CSV.", show_default=False)] = None,
    price: Annotated[
        str | None, typer.Option(metavar="USD/H", help="2.5USD/h per accelerator, instead of the recorded price.", show_default=False)
    ] = None,
    region: RegionName = "",
    as_json: AsJson = False,
) -> None:
    """Show the ledger of a run: what its accelerators did, what that cost, and how much energy they used.

    Examples:

      meshwright ledger runs/first --csv first.csv

      meshwright ledger runs/first --price 2.5USD/h --json
    """
    from meshwright.cli.show import show
    from meshwright.cli.urls import run_here
    from meshwright.errors import InputError
    from meshwright.files import check_ending, write_whole
    from meshwright.ledger import ledger_csv, ledger_of, read_rate
    from meshwright.say.ledger import ledger_document

    if csv is not None and csv.is_dir():
        raise InputError("cannot write a table over a folder", where=str(csv), fix="name a file: --csv ledger.csv")
    check_ending(csv, "the table of entries", ".csv")
    found = ledger_of(run_here(run), price=None if price is None else read_rate(price), region=region)
    if csv is not None:
        write_whole(csv, ledger_csv(found))
    show(ledger_document(found).with_files({"entries": csv}), as_json=as_json)
    if csv is not None and not as_json:
        print(f"written: {csv}")
