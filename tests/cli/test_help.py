"""What `--help` shows of every command: what each option does, and two examples that the parser accepts."""

from __future__ import annotations

import shlex

import pytest
import typer

from meshwright.cli import main as cli
from meshwright.cli.help import examples_of, help_of
from meshwright.cli.main import main
from meshwright.describe.load import load_cluster, load_model, load_workload

WIDTHS = (60, 100, 160)
NOUNS_LOAD = {"model": load_model, "cluster": load_cluster, "workload": load_workload}
NOUNS = NOUNS_LOAD.keys()


def commands():
    """Every command by its words."""
    group = typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {word}", one) for word, one in inner.items()) if inner else [(name, command)]


COMMANDS = dict(commands())
OPTIONS = [(name, one) for name, command in COMMANDS.items() for one in command.params if one.name != "help"]


def examples(command):
    """The lines below `Examples:`."""
    return [line.strip() for line in (command.epilog or "").partition("Examples:\n")[2].splitlines() if line.strip() not in ("", "\b")]


@pytest.mark.parametrize("name, option", OPTIONS, ids=[f"{name} {one.name}" for name, one in OPTIONS])
def test_every_option_says_what_it_does_in_a_sentence(name, option):
    assert option.help
    assert option.help.endswith((".", "..."))
    assert option.help[0].isupper() or "=" in option.help.split()[0] or not option.help[0].isalpha() or ":" in option.help
    assert getattr(option, "is_flag", False) or option.metavar, "what the value is: N, FILE, SECONDS"
    assert not any(mark in (option.metavar or "") for mark in ("[", "...")) or option.metavar == "N,N,...", "usage adds its own"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_with_two_examples_that_parse(name):
    command = COMMANDS[name]
    found = examples(command)
    assert len(found) == 2
    for line in found:
        assert line.startswith(f"meshwright {name}")
        words = shlex.split(line)[1 + len(name.split()) :]
        with command.make_context(name, words) as context:
            given = context.params
        for noun in NOUNS & given.keys():
            assert not given[noun] or NOUNS_LOAD[noun](given[noun]).name


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_the_width_of_the_terminal_and_cuts_nothing(name, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    command = COMMANDS[name]
    for example in examples(command):
        assert f"    {example}" in lines, "an example is one line, to be copied"
    assert [line.strip() for line in lines if line.strip()][-2:] == examples(command), "help ends with the examples"
    others = [line for line in lines if line.strip() not in examples(command)]
    assert max(map(len, others)) <= width
    shown = "".join("".join(others).split())  # a line may also end at a hyphen
    for option in command.params:
        assert "".join(option.help.split()) in shown
        assert all(one in shown for one in option.opts if one.startswith("--"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_what_a_user_writes_and_no_types_of_python(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*name.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    about = [line for line in lines if line.strip() not in examples(COMMANDS[name])]
    assert not any(mark in line for line in about for mark in ("<", "{", "list[", "Path]"))
    for one in COMMANDS[name].params:
        left = [line.split("  ")[1] for line in about if line.startswith("  ") and one.help.split("`")[0] in line]
        word = one.metavar if one.opts[0] == one.name else f"{one.opts[0]} {one.metavar}"
        dots = "..." if one.nargs == -1 else ""
        assert getattr(one, "is_flag", False) or f"{word}{dots}" in left or ", ".join(one.opts) + f" {one.metavar}" in left
        assert one.opts[0] != one.name or (word if one.required else f"[{word}]") + dots in lines[0].split()


def test_a_wide_terminal_is_used(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["simulate", "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) > 100


def test_a_docstring_without_examples_is_its_own_help():
    def command():
        """Do one thing."""

    assert help_of(command) == "Do one thing." and examples_of(command) == ""


@pytest.mark.parametrize("words", [[], ["corpus"], ["audit"], ["lab"]], ids=["meshwright", "corpus", "audit", "lab"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_list_of_commands_is_not_cut(words, width, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*words, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.endswith("...") for line in lines[1:])
    assert max(len(line) for line in lines if not line.startswith("    meshwright ")) <= width  # examples stay whole
