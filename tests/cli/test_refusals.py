"""What the parser refuses, as one of our own errors."""

from __future__ import annotations

import pytest
import typer

from meshwright.cli.main import app
from meshwright.cli.refusals import ParserError, refusal_of
from meshwright.errors import InputError

PROGRAM = typer.main.get_command(app)


def refused(*arguments: str) -> InputError:
    with pytest.raises(ParserError) as error:
        PROGRAM.main(list(arguments), prog_name="meshwright", standalone_mode=False)
    return refusal_of(error.value, arguments, PROGRAM)


def test_an_option_that_is_none_is_named_with_the_closest() -> None:
    error = refused("predict", "llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", "--layot", "tp=2")
    assert error.what == "no option --layot" and "--layout" in error.fix and error.where == "meshwright predict"


def test_a_missing_argument_is_named_with_what_it_is() -> None:
    error = refused("predict", "llama-3.1-8b")
    assert "is missing" in error.what and error.fix.startswith("add ")


@pytest.mark.parametrize("value", ["many", "1.5", "-3"])
def test_a_value_of_the_wrong_kind_is_shown(value: str) -> None:
    error = refused("plan", "llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", "--keep", value)
    assert value in error.what and error.where == "--keep" and "a whole number" in error.fix


def test_an_option_without_its_value_says_so() -> None:
    error = refused("plan", "llama-3.1-8b", "dgx-h100-superpod", "pretrain-1t", "--keep")
    assert error.what == "--keep needs a value"


def test_an_unknown_command_is_named_with_the_closest() -> None:
    error = refused("plann")
    assert error.what == "no command 'plann'" and "plan" in error.fix
