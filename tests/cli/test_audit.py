"""`meshwright audit`: a group of two commands."""

from __future__ import annotations

from meshwright.cli.main import main


def test_the_group_alone_shows_its_help(capsys):
    assert main(["audit", "--help"]) == 0
    out = capsys.readouterr().out
    assert "log" in out and "claim" in out
