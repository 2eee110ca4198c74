"""The command line: one file per verb; parse, load, call, print."""

from __future__ import annotations

import sys


def run() -> int:
    """Run the command line; return its exit code. Ctrl-C is one line also while the commands are being loaded."""
    try:
        from meshwright.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("meshwright: interrupted", file=sys.stderr)
        return 130
