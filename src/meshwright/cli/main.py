"""The command `meshwright`: its subcommands, and the only place that turns expected errors into a message and an exit code."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from meshwright.cli import BAD_INPUT
from meshwright.cli.accuracy import accuracy
from meshwright.cli.audit import audit
from meshwright.cli.calibrate import calibrate
from meshwright.cli.corpus import corpus
from meshwright.cli.describe import describe
from meshwright.cli.doctor import doctor
from meshwright.cli.fit import fit
from meshwright.cli.generate import generate
from meshwright.cli.help import add
from meshwright.cli.lab import lab
from meshwright.cli.launch import launch
from meshwright.cli.ledger import ledger
from meshwright.cli.measure import measure
from meshwright.cli.memory import memory
from meshwright.cli.noise import noise
from meshwright.cli.plan import plan
from meshwright.cli.predict import predict
from meshwright.cli.refusals import ParserError, refusal_of
from meshwright.cli.rehearse import rehearse
from meshwright.cli.report import report
from meshwright.cli.retries import first_to_refuse
from meshwright.cli.scale import scale
from meshwright.cli.serve import serve
from meshwright.cli.simulate import simulate
from meshwright.cli.sweep import sweep
from meshwright.cli.train import train
from meshwright.cli.tune import tune
from meshwright.cli.validate import validate
from meshwright.cli.weights import weights
from meshwright.errors import InputError, MeshwrightError, TooFewNodesError, message_of, printable

INTERRUPTED = 130

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

# The module of a command imports large packages inside its function, so that --help stays fast.
for command in (
    describe,
    plan,
    predict,
    sweep,
    simulate,
    rehearse,
    doctor,
    train,
    tune,
    scale,
    launch,
    report,
    serve,
    ledger,
    generate,
    weights,
    measure,
    memory,
    calibrate,
    validate,
    fit,
    noise,
    accuracy,
):
    add(app, command)
app.add_typer(corpus, short_help=corpus.info.help)
app.add_typer(audit, short_help=audit.info.help)
app.add_typer(lab, short_help=lab.info.help)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"meshwright {version('meshwright')}")
        raise typer.Exit


@app.callback()
def meshwright(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Plan, predict, simulate and run the training of large language models, and check claims about it."""


# Options that `--set` has replaced, each with the new key; the old names still work, and print the new one.
MOVED_OPTIONS = {"--batch": "workload.global_batch", "--seq": "workload.seq_len", "--precision": "workload.precision"}
MOVED_IN = ("plan", "predict", "sweep")


def translated(arguments: Sequence[str]) -> list[str]:
    """The arguments with old option names replaced; each replacement is printed on stderr."""
    if not arguments or arguments[0] not in MOVED_IN:
        return list(arguments)
    found: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        option, equals, value = argument.partition("=")
        if option == "--exact":
            print("meshwright: --exact is not needed: every step time is that of the exact schedule", file=sys.stderr)
            continue
        key = MOVED_OPTIONS.get(option)
        if key is None:
            found.append(argument)
            continue
        value = value if equals else next(rest, "")
        print(f"meshwright: {option} is now --set {key}={value}", file=sys.stderr)
        found += ["--set", f"{key}={value}"]
    return found


# Arguments of Python functions whose command-line option has another name.
OPTIONS = {"changes": "--set", "deadline_s": "--deadline", "budget_usd": "--budget"}


def as_option(name: str, text: str, _value: str) -> str:
    """An argument of a Python function in the form of the command line: `--links-lost 2`."""
    option = OPTIONS.get(name, f"--{name.replace('_', '-')}")
    return f"{option} {text}" if text else option


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code. Every expected error, from our code or from the parser, is one message on stderr."""
    arguments = translated(sys.argv[1:] if argv is None else argv)
    try:
        width = shutil.get_terminal_size().columns  # help would otherwise be at most 80 columns wide
        code = app(arguments or ["--help"], prog_name="meshwright", standalone_mode=False, max_content_width=width) or 0
    except InputError as error:
        return _refuse(_told(error))
    except MeshwrightError as error:
        print(f"meshwright: {_told(error)}", file=sys.stderr)
        return error.EXIT_STATUS if isinstance(error, TooFewNodesError) else BAD_INPUT
    except ParserError as error:
        return _refuse(str(refusal_of(error, arguments, typer.main.get_command(app))))
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed it
        return 1
    except OSError as error:  # a full disk, or a folder that was removed
        where = printable(str(error.filename or "the output"))
        fix = "\n  fix:   free some space, or write to another disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        print(f"meshwright: cannot read or write: {error.strerror or error}\n  where: {where}{fix}", file=sys.stderr)
        return BAD_INPUT
    if code == INTERRUPTED:
        print("meshwright: interrupted", file=sys.stderr)
    return int(code)


def _told(error: MeshwrightError) -> str:
    """The message of an error, in the words of the command line; a run that was named by a URL is named by it."""
    from meshwright.cli.urls import by_url

    return by_url(message_of(error, as_option))


def _refuse(message: str) -> int:
    """Print why the input is refused, once among the ranks that torchrun started on this machine; return the exit code."""
    if first_to_refuse(message, os.environ):
        print(f"meshwright: {message}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
