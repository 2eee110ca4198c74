"""Errors of the parser in the form of our own errors: what is wrong, where, and how to fix it.

Only fields of click's exceptions and parameters are read, not its messages. Some versions of typer contain their own copy of click, so the
classes are taken from the module that typer uses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from meshwright.cli.help import limits_of, name_of
from meshwright.errors import InputError, close_names, nearest

_exceptions: Any = sys.modules[typer.BadParameter.__module__]
ParserError: type[Exception] = _exceptions.ClickException


def refusal_of(error: Exception, arguments: Sequence[str], program: Any) -> InputError:
    """The parser's error about the arguments of a program, as one of our errors."""
    command, path = _command(program, arguments)  # not from the context of the error: some errors have none
    see = f"see {path} --help"
    if isinstance(error, _exceptions.NoSuchOption):
        near = close_names(error.option_name, error.possibilities or _options(command))
        return InputError(f"no option {error.option_name}", where=path, fix=f"did you mean {' or '.join(near)}?" if near else see)
    if isinstance(error, _exceptions.BadOptionUsage):
        is_flag = any(error.option_name in one.opts for one in command.params if getattr(one, "is_flag", False))
        return InputError(f"{error.option_name} {'takes no value' if is_flag else 'needs a value'}", where=path, fix=see)
    if isinstance(error, _exceptions.MissingParameter) and error.param is not None:
        return _missing(error.param, path)
    if isinstance(error, _exceptions.BadParameter) and error.param is not None:
        return _bad(error.param, arguments, see)
    if known := getattr(command, "commands", None):
        word = _word_after(path, arguments)
        return InputError(f"no command {word!r}" if word else "no command is given", where=path, fix=nearest(word, known) if word else see)
    what = getattr(error, "message", str(error)).strip().rstrip(".")
    return InputError(what[:1].lower() + what[1:], where=path, fix=see)


def _missing(parameter: Any, path: str) -> InputError:
    """The error about a missing argument or option, with its description."""
    about = (parameter.help or "").rstrip(".")
    name = name_of(parameter)
    value = f" {parameter.metavar}" if name.startswith("--") and parameter.metavar else ""
    return InputError(f"{name} is missing", where=path, fix=f"add {name}{value}" + (f" ({about})" if about else ""))


def _bad(parameter: Any, arguments: Sequence[str], see: str) -> InputError:
    """The error about a value of the wrong type, or outside its range."""
    name = name_of(parameter)
    kind = _kind(parameter)
    limits, value = limits_of(parameter), _given(parameter.opts, arguments)
    wanted = f"give {kind}{f': {limits}' if limits else ''}" if kind else see
    return InputError(f"{name} is {value!r}" if value else f"{name} has no value", where=name, fix=wanted)


def _kind(parameter: Any) -> str:
    """What a value must be, in words; "" if it is not a number."""
    annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
    words = str(getattr(getattr(parameter, "type", None), "name", ""))  # in an older typer: `integer range`
    if annotation is int or words.startswith("integer"):
        return "a whole number"
    return "a number" if annotation is float or words.startswith("float") else ""


def _given(names: Sequence[str], arguments: Sequence[str]) -> str:
    """The last value given to an option on the command line; "" if there is none."""
    values = [argument.partition("=")[2] for argument in arguments if argument.partition("=")[0] in names and "=" in argument]
    values += [after for name, after in pairwise(arguments) if name in names]
    return values[-1] if values else ""


def _word_after(path: str, arguments: Sequence[str]) -> str:
    """The first word after the words of a group of commands; options are skipped."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    return next(iter(words[len(path.split()) - 1 :]), "")


def _command(program: Any, arguments: Sequence[str]) -> tuple[Any, str]:
    """The command that the arguments name, or as much of it as they name, and its words."""
    command, path = program, ["meshwright"]
    for word in (argument for argument in arguments if not argument.startswith("-")):
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command, path = inner, [*path, word]
    return command, " ".join(path)


def _options(command: Any) -> list[str]:
    return ["--help", *(name for one in command.params for name in one.opts if name.startswith("--"))]
