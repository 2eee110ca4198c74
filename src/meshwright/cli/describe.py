"""Print a catalogue entry or a user's own file, with derived numbers and sources; without a name, list everything."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.options import AsJson


def describe(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE", help="A catalogue name, a TOML file or a config.json; without it, all names.", show_default=False
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the catalogue, or describe one entry with derived numbers and sources.

    Examples:

      meshwright describe

      meshwright describe llama-3.1-405b --json
    """
    from meshwright.cli.show import show
    from meshwright.describe.find import find
    from meshwright.say.description import catalogue_document, entry_document

    show(entry_document(*find(name)) if name else catalogue_document(), as_json=as_json)
