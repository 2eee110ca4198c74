"""Help texts: a command's docstring, its arguments and options by the names that users write, and its examples."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand

EXAMPLES = "Examples:"
UNWRAPPED = "\b"  # click does not wrap a paragraph that begins with this character
NO_LIMIT = 2**60  # a maximum of this or more is a limit of the computer, not worth showing


class PlainCommand(TyperCommand):
    """A command whose help shows what a user writes (`PLAN`, `RUN...`, `--steps N`); typer alone would show Python types."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words after the command's name."""
        usage = [_usage(one) for one in self.params if not is_option(one)]
        return ["[OPTIONS]", *usage]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, each with its description."""
        records = [(is_option(one), (_left(one), _right(one))) for one in self.get_params(ctx)]
        for title, wanted in (("Arguments", False), ("Options", True)):
            rows = [row for option, row in records if option is wanted]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def is_option(parameter: Any) -> bool:
    """Whether a parameter is an option, not a positional argument."""
    return str(parameter.opts[0]).startswith("-")


def name_of(parameter: Any) -> str:
    """The first name of an option, or the word that stands for an argument."""
    first = str(parameter.opts[0])
    return first if is_option(parameter) else str(parameter.metavar or first.upper())


def limits_of(parameter: Any, largest: float = math.inf) -> str:
    """The range of a number in words: `1 to 500`, `at least 1`; "" if it has none. A maximum of `largest` or more is left out."""
    least, most = (getattr(parameter, end, None) for end in ("min", "max"))
    if least is None and most is None:  # an older typer keeps the limits in the type
        least, most = (getattr(getattr(parameter, "type", None), end, None) for end in ("min", "max"))
    if most is not None and most >= largest:
        most = None
    if least is not None and most is not None:
        return f"{least:,g} to {most:,g}" if most < 1e6 else f"{least:,} to {most:,}"
    return f"at least {least:,g}" if least is not None else f"at most {most:,}" if most is not None else ""


def _usage(parameter: Any) -> str:
    word = name_of(parameter) if parameter.required else f"[{name_of(parameter)}]"
    return f"{word}..." if parameter.nargs == -1 else word


def _left(parameter: Any) -> str:
    """What to write: `RUN...`, `--steps N`, `--save / --no-save`."""
    if not is_option(parameter):
        return f"{name_of(parameter)}..." if parameter.nargs == -1 else name_of(parameter)
    names = " / ".join(filter(None, (", ".join(parameter.opts), ", ".join(parameter.secondary_opts))))
    return names if getattr(parameter, "is_flag", False) else f"{names} {parameter.metavar or ''}".rstrip()


def _right(parameter: Any) -> str:
    """Its description, and in brackets its default, its range, and whether it must be given."""
    default = _default(parameter)
    extra = [f"default: {default}"] if default else []
    extra += list(filter(None, [limits_of(parameter, NO_LIMIT)]))
    extra += ["required"] if parameter.required else []
    about = getattr(parameter, "help", "") or ""
    return f"{about}  [{'; '.join(extra)}]" if extra else about


def _default(parameter: Any) -> str:
    """The default as a user would write it; "" if there is none to show."""
    value = parameter.default
    if parameter.secondary_opts:
        return str((parameter.opts if value else parameter.secondary_opts)[0]).lstrip("-")
    if getattr(parameter, "is_flag", False) or not getattr(parameter, "show_default", True) or value is None or callable(value):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def help_of(command: Callable[..., Any]) -> str:
    """The docstring of a command without its examples."""
    return _parts(command)[0]


def examples_of(command: Callable[..., Any]) -> str:
    """The examples at the end of a command's help; each is one line, however wide, so that it can be copied."""
    return examples(*(line.strip() for line in _parts(command)[1].splitlines() if line.strip()))


def examples(*lines: str) -> str:
    """Lines below a heading; nothing if there are none."""
    return "\n".join([EXAMPLES, "", UNWRAPPED, *(f"  {line}" for line in lines)]) if lines else ""


def _parts(command: Callable[..., Any]) -> tuple[str, str]:
    """What the docstring says, and its examples."""
    about, _, examples = (inspect.getdoc(command) or "").partition(f"\n{EXAMPLES}\n")
    return about.rstrip(), examples


def add(app: typer.Typer, command: Callable[..., Any], settings: dict[str, Any] | None = None) -> None:
    """Add a command with its whole docstring; typer alone would cut the first line in the list of commands.

    `settings` are those of click's context, for a command that passes its words on to another.
    """
    text = help_of(command)
    short, epilog = text.partition("\n")[0], examples_of(command) or None
    app.command(cls=PlainCommand, context_settings=settings, help=text, short_help=short, epilog=epilog)(command)
