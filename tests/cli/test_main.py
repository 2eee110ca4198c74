"""The command line as a whole: help, version, and every failure one message and an exit code."""

import os
import subprocess
import sys

import pytest
import typer

from meshwright.cli import main as cli
from meshwright.cli import run
from meshwright.cli.main import main
from meshwright.errors import InputError

MOST_MODULES = 260  # that help may load: 171 on Python 3.11


def test_help_lists_the_commands(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: meshwright [OPTIONS] COMMAND [ARGS]...")
    assert "  describe " in out


def test_no_arguments_is_help(capsys):
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("Usage: meshwright")


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "meshwright 0.1.0\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["descibe"], "meshwright: no command 'descibe'\n  where: meshwright\n  fix:   did you mean describe?\n"),
        (["describe", "--jsn"], "meshwright: no option --jsn\n  where: meshwright describe\n  fix:   did you mean --json?\n"),
        (
            ["describe", "a", "b"],
            "meshwright: got unexpected extra argument(s) (b)\n  where: meshwright describe\n  fix:   see meshwright describe --help\n",
        ),
        (["--nothing"], "meshwright: no option --nothing\n  where: meshwright\n  fix:   see meshwright --help\n"),
        (["--versio"], "meshwright: no option --versio\n  where: meshwright\n  fix:   did you mean --version?\n"),
        (["corpus"], "meshwright: no command is given\n  where: meshwright corpus\n  fix:   see meshwright corpus --help\n"),
        (["corpus", "bild"], "meshwright: no command 'bild'\n  where: meshwright corpus\n  fix:   did you mean build?\n"),
        (
            ["corpus", "show"],
            "meshwright: DIR is missing\n  where: meshwright corpus show\n  fix:   add DIR (Folder of a corpus, or its URL)\n",
        ),
        (["generate", "x"], "meshwright: --prompt is missing\n  where: meshwright generate\n  fix:   add --prompt TEXT (Text to continue;"),
        (["simulate", "x", "--steps=0"], "meshwright: --steps is '0'\n  where: --steps\n  fix:   give a whole number: 1 to 1,000,000\n"),
        (["simulate", "x", "--jitter", "a"], "meshwright: --jitter is 'a'\n  where: --jitter\n  fix:   give a number: 0 to 1,000\n"),
        (["simulate", "x", "--storage", "a"], "meshwright: --storage is 'a'\n  where: --storage\n  fix:   give a number\n"),
        (
            ["simulate", "x", "--steps"],
            "meshwright: --steps needs a value\n  where: meshwright simulate\n  fix:   see meshwright simulate --h",
        ),
        (
            ["describe", "--json=1"],
            "meshwright: --json takes no value\n  where: meshwright describe\n  fix:   see meshwright describe --help",
        ),
    ],
)
def test_what_the_parser_refuses(capsys, arguments, message):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith(message) and captured.err.count("\n") == 3


MISTAKES = [
    ["generate", "nowhere", "--prompt", "x", "--temperature", "-1"],
    ["generate", "nowhere", "--prompt", "x"],
    ["weights", "nowhere", "--out", "x"],
    ["weights", ".", "--out", "."],
    ["train", "none.json"],
    ["train", "--name", "taken"],
    ["train", "--name", "a", "--resume"],
    ["train", "--seed", str(2**63)],
]


def test_mistakes_are_reported_before_torch_is_loaded(tmp_path):
    """It takes seconds to load."""
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    (tmp_path / "runs" / "taken" / "run.json").write_text("{}")
    (tmp_path / "plan.json").write_text("{}")  # so that `weights .` finds a run
    code = f"import sys; from meshwright.cli.main import main; print([main(one) for one in {MISTAKES!r}], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == f"{[2] * len(MISTAKES)} False\n", done.stderr


def commands():
    """Every command by its words."""
    group = typer.main.get_command(cli.app)
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {word}", one) for word, one in inner.items()) if inner else [(name, command)]


def test_every_command_but_four_has_json():
    without = [name for name, command in commands() if not any("--json" in option.opts for option in command.params)]
    # launch prints the number of the job, lab run what its command prints, lab login a shell
    assert without == ["launch", "serve", "lab run", "lab login"]


def failing(error):
    def command(*_args, **_kwargs):
        raise error

    return command


def test_our_own_errors(capsys, monkeypatch):
    monkeypatch.setattr(cli, "app", failing(InputError("tp is 6", where="layout.tp", fix="choose 4")))
    assert main(["describe"]) == 2
    assert capsys.readouterr().err == "meshwright: tp is 6\n  where: layout.tp\n  fix:   choose 4\n"


def test_an_interrupt(capsys, monkeypatch):
    monkeypatch.setattr(cli, "app", failing(KeyboardInterrupt()))
    assert main(["describe"]) == 130
    assert capsys.readouterr().err == "meshwright: interrupted\n"


def test_an_interrupt_inside_a_command(capsys, monkeypatch):
    monkeypatch.setattr("meshwright.say.description.catalogue_document", failing(KeyboardInterrupt()))
    assert main(["describe"]) == 130
    assert capsys.readouterr().err == "meshwright: interrupted\n"


def test_an_unforeseen_error_is_not_hidden(monkeypatch):
    monkeypatch.setattr(cli, "app", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["describe"])


def test_help_loads_nothing_heavy():
    """Help must not wait for numpy, pydantic or torch; benchmarks/help.py says how long it takes."""
    heavy = "{'numpy', 'pydantic', 'torch', 'scipy', 'fastapi'} & set(sys.modules)"
    code = (
        f"import sys; from meshwright.cli.main import main; main(['--help']); sys.exit(bool({heavy}) or len(sys.modules) > {MOST_MODULES})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert done.returncode == 0


def test_ctrl_c_while_commands_are_loaded_is_one_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.cli.main.main", interrupted)
    assert run() == 130
    assert capsys.readouterr().err == "meshwright: interrupted\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device of Linux")
def test_a_full_disk_is_one_message_with_a_true_fix():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meshwright", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2 and "No space left on device" in done.stderr and "free some space" in done.stderr
    assert "Traceback" not in done.stderr
