"""An error says what was wrong, where it stands and how to mend it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cli.main import OPTIONS, as_option
from meshwright.errors import FitError, InputError, MeshwrightError, argument, message_of, nearest


def test_what_where_and_fix_stand_on_lines_of_their_own():
    error = InputError("tensor degree 6 does not divide 64 attention heads", where="layout.tp", fix="choose tp from 1, 2, 4")
    assert str(error) == "tensor degree 6 does not divide 64 attention heads\n  where: layout.tp\n  fix:   choose tp from 1, 2, 4"


def test_a_line_that_has_nothing_to_say_is_left_out():
    assert str(InputError("too small", fix="add one")) == "too small\n  fix:   add one"
    assert str(InputError("too small")) == "too small"


@pytest.mark.parametrize("kind", [InputError, FitError])
def test_every_kind_is_caught_as_one(kind):
    with pytest.raises(MeshwrightError):
        raise kind("no")


def test_close_names_are_offered_first():
    assert nearest("h10", ["h100", "gb300", "tpu-v5p"]) == "did you mean h100?"
    assert nearest("H100", ["h100", "h200"]) == "did you mean h100?"
    assert nearest("h10x", ["h100", "gb300", "h101"]) == "did you mean h100 or h101?"


def test_where_none_is_close_all_are_offered():
    assert nearest("zebra", ["tp", "cp"]) == "use one of cp, tp"
    assert nearest("zebra", []) == "nothing is known here"


@given(st.text(), st.lists(st.text()))
def test_any_name_gets_an_answer(name, known):
    assert nearest(name, known)


def test_an_argument_is_named_as_the_reader_wrote_it():
    error = InputError(f"{argument('links_lost')} is 2", where=argument("links_lost", 2.0), fix=f"leave {argument('changes', 'a=1')} out")
    assert (error.what, error.where, error.fix) == ("links_lost is 2", "links_lost=2.0", "leave changes='a=1' out")
    assert str(error) == "links_lost is 2\n  where: links_lost=2.0\n  fix:   leave changes='a=1' out"
    assert message_of(error, as_option) == "--links-lost is 2\n  where: --links-lost 2.0\n  fix:   leave --set a=1 out"


SOURCE = Path(inspect.getfile(InputError)).parent
# What Python users do not call with arguments of their own.
COMMAND_ONLY = ("engines", "doctor", "lab", "cli", "train", "serve", "audit", "say", "report")
OTHERS_OPTIONS = ("plan/export", "plan/stack/megatron.py", "describe/this_machine.py")  # command lines of other programs


def texts_with_options(path):
    """Strings of a module, without docstrings and quoted commands, that name an option."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docs = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented) and isinstance(node.body[0], ast.Expr)}
    joined = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | joined:
            text = node.value
        else:
            continue
        if re.search(r"--[a-z]", re.sub(r"`meshwright [^`]*`", "", text)):
            yield text


ROWS = ("evidence/machine.py", "evidence/measured.py", "evidence/mlperf.py", "evidence/published.py")  # why a row of a table is skipped


def test_every_error_of_a_user_says_how_to_fix_it():
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).as_posix() in ROWS:
            continue
        calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        for call in calls:
            if getattr(call.func, "id", "") in ("InputError", "FitError", "UnreadableLog"):
                fixes = [one.value for one in call.keywords if one.arg == "fix"]
                assert fixes and getattr(fixes[0], "value", "text"), f"{path.name}:{call.lineno}"


def test_what_python_users_call_names_arguments_not_options():
    for path in sorted(SOURCE.rglob("*.py")):
        place = path.relative_to(SOURCE).as_posix()
        if not place.startswith((*(f"{part}/" for part in COMMAND_ONLY), *OTHERS_OPTIONS)):
            assert list(texts_with_options(path)) == [], place


def test_every_argument_of_an_error_is_an_option_of_a_command():
    from meshwright.cli.main import app

    named = {name for path in SOURCE.rglob("*.py") for name in re.findall(r"\bargument\([\"']([a-z_]+)[\"']", path.read_text())}
    commands = typer.main.get_command(app).commands.values()
    inner = [one for command in commands for one in getattr(command, "commands", {"": command}).values()]
    options = {option for command in inner for one in command.params for option in one.opts}
    assert len(named) > 20 and {as_option(name, "", "") for name in named} <= options
    assert set(OPTIONS) <= named
