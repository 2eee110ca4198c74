"""The command line: one file per verb; parse, load, call, print."""

from __future__ import annotations

import io
import os
import sys


def run() -> int:
    """Run the command line; return its exit code. Ctrl-C is one line also while the commands are being loaded."""
    _open_standard_streams()
    try:
        from meshwright.cli.main import main

        code = main()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("meshwright: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        code = 1
    if code == 1:  # the reader may have gone away: then nothing more can be written, not even when Python ends
        _let_go_of_output()
    return code


def _open_standard_streams() -> None:
    """Give a process that was started with a closed standard stream one that leads nowhere: a file must not get its number."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 - for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name from a file may hold what this terminal cannot write


def _let_go_of_output() -> None:
    """Drop what is still buffered for a reader that has gone away."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
