"""Progress on stderr, shown only on a terminal: a bar for work of more than a second, or one line that says what is being done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0
Report = Callable[[str, int, int], None]  # what is being done, how much is done, and of how much


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A function to report progress to."""
    if not sys.stderr.isatty() or os.environ.get("NO_COLOR"):  # a bar is drawn with escape codes
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("")
    started_s = time.monotonic()

    def report(what: str, done: int, total: int) -> None:
        if time.monotonic() - started_s > PATIENCE_S:
            bar.start()  # does nothing if it runs already
            bar.update(task, description=what, completed=done, total=total)

    try:
        yield report
    finally:
        bar.stop()


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that prints what is being done, with the seconds since the start; forked processes may call it too."""
    if not sys.stderr.isatty():
        yield lambda what: None
        return
    started_s, width = time.monotonic(), shutil.get_terminal_size().columns - 1

    def report(what: str) -> None:
        line = f"{time.monotonic() - started_s:4.0f} s  {what}"
        print(f"\r{line[:width]:<{width}}", end="", file=sys.stderr, flush=True)

    try:
        yield report
    finally:
        print(f"\r{'':<{width}}\r", end="", file=sys.stderr, flush=True)
