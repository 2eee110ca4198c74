"""Help texts: a command's docstring, with its examples kept on lines of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

EXAMPLES = "Examples:"
UNWRAPPED = "\b"  # click does not re-wrap a paragraph that begins with this character


def help_of(command: Callable[..., Any]) -> str:
    """The docstring of a command; every example is one line, whatever the width of the terminal, so that it can be copied."""
    about, heading, examples = (inspect.getdoc(command) or "").partition(f"\n{EXAMPLES}\n")
    if not heading:
        return about
    lines = [f"  {line.strip()}" for line in examples.splitlines() if line.strip()]
    return "\n".join([about.rstrip(), "", EXAMPLES, "", UNWRAPPED, *lines])


def add(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add a command with all of its docstring: left to itself, typer cuts the first line in the list of commands."""
    whole = help_of(command)
    app.command(help=whole, short_help=whole.partition("\n")[0])(command)
