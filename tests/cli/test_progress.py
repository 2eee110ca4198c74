"""Progress on stderr: nothing where it goes elsewhere, one line or a bar on a terminal, and the terminal clean at the end."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from meshwright.cli import progress as module
from meshwright.cli.progress import progress_bar, progress_line


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _screen(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal of forty columns in the place of stderr."""
    screen = Terminal()
    with redirect_stderr(screen):
        yield screen


def test_nothing_is_shown_where_the_output_goes_elsewhere(capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    with progress_bar() as report:
        report("searching", 1, 2)
    with progress_line() as say:
        say("something")
    assert capsys.readouterr() == ("", "")


def test_a_bar_is_shown_after_a_while_and_wiped_away(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    with terminal() as screen, progress_bar() as report:
        report("searching [bold]", 1, 2)
        report("searching [bold]", 2, 2)
    shown = screen.getvalue()
    assert "searching" in shown and shown.rstrip().endswith("\x1b[2K")  # the line is cleared


def test_work_that_is_done_at_once_shows_nothing(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", 3600.0)
    with terminal() as screen, progress_bar() as report:
        report("searching", 1, 2)
    assert "searching" not in screen.getvalue()


def test_no_color_is_no_bar(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal() as screen, progress_bar() as report:
        report("searching", 1, 2)
    assert screen.getvalue() == ""


def test_a_line_is_written_over_cut_to_the_width_and_wiped_at_the_end():
    with terminal() as screen, progress_line() as say:
        say("short")
        say("x" * 200)
    empty, short, long, wiped, rest = screen.getvalue().split("\r")
    assert (empty, rest) == ("", "") and short == f"{'   0 s  short':<39}" and long == f"   0 s  {'x' * 31}" and wiped == " " * 39


def test_the_line_goes_also_where_the_work_fails():
    with terminal() as screen, pytest.raises(ZeroDivisionError), progress_line() as say:
        say("dividing")
        raise ZeroDivisionError
    assert screen.getvalue().endswith(f"\r{'':<39}\r")


def test_a_bar_stops_also_where_the_work_fails(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_S", -1.0)
    with terminal() as screen, pytest.raises(ZeroDivisionError), progress_bar() as report:
        report("searching", 1, 2)
        raise ZeroDivisionError
    assert screen.getvalue().count("\x1b[?25l") == screen.getvalue().count("\x1b[?25h")  # the cursor is shown again
