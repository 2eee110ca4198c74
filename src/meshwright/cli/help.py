"""Help texts: a command's docstring, with its examples kept on lines of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer

EXAMPLES = "Examples:"
UNWRAPPED = "\b"  # click does not re-wrap a paragraph that begins with this character


def help_of(command: Callable[..., Any]) -> str:
    """The docstring of a command without its examples."""
    return _parts(command)[0]


def examples_of(command: Callable[..., Any]) -> str:
    """The examples of a command, which its help ends with; each is one line, however wide, so that it can be copied."""
    return examples(*(line.strip() for line in _parts(command)[1].splitlines() if line.strip()))


def examples(*lines: str) -> str:
    """Lines below a heading; nothing where there are none."""
    return "\n".join([EXAMPLES, "", UNWRAPPED, *(f"  {line}" for line in lines)]) if lines else ""


def _parts(command: Callable[..., Any]) -> tuple[str, str]:
    """What the docstring says, and its examples."""
    about, _, examples = (inspect.getdoc(command) or "").partition(f"\n{EXAMPLES}\n")
    return about.rstrip(), examples


def add(app: typer.Typer, command: Callable[..., Any]) -> None:
    """Add a command with all of its docstring: left to itself, typer cuts the first line in the list of commands."""
    whole = help_of(command)
    app.command(help=whole, short_help=whole.partition("\n")[0], epilog=examples_of(command) or None)(command)
