"""The command line: one file per verb; parse, load, call, print."""

from __future__ import annotations

import io
import os
import sys

from meshwright.cli.retries import refused_before

BAD_INPUT = 2


def run() -> int:
    """Run the command line; return its exit code. Ctrl-C prints a single line, even while the commands are still being loaded."""
    _open_standard_streams()
    if refused_before(os.environ):
        return BAD_INPUT
    try:
        from meshwright.cli.main import main

        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("meshwright: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        code = 1
    if code == 1:  # the reader of our output may have closed it: then Python must not try to flush it at exit
        _let_go_of_output()
    return code


def _open_standard_streams() -> None:
    """Open the null device for every closed standard stream, so that no file that is opened later gets its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 - for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name from a file may contain characters that this terminal cannot show


def _let_go_of_output() -> None:
    """Drop the output that is still buffered, because its reader has closed it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
