"""Print a catalogue entry or a file of one's own, with derived numbers and sources; without a name, list everything."""

from __future__ import annotations

from typing import Annotated

import typer


def describe(
    name: Annotated[str, typer.Argument(help="A catalogue name, or a path to a TOML file or a config.json.", show_default=False)] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the same as JSON.")] = False,
) -> None:
    """List what is known, or describe one entry with its derived numbers and sources."""
    from meshwright.cli import describe_entry

    if name:
        describe_entry.show_entry(name, as_json=as_json)
    else:
        describe_entry.show_catalogue(as_json=as_json)
