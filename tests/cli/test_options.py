"""Options that several commands share: each command that has one has it under the same name, with the same words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from meshwright.cli import options
from meshwright.cli.main import app

SHARED = {name: one.__metadata__[0] for name, one in vars(options).items() if hasattr(one, "__metadata__")}
FLAGS = {name for name, one in vars(options).items() if getattr(one, "__origin__", None) is bool}  # they take no value


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def parameters() -> list[tuple[str, Any]]:
    return [(name, parameter) for name, command in commands(typer.main.get_command(app)) for parameter in command.params]


def test_all_of_them_are_found():
    assert {"ModelName", "ClusterName", "WorkloadName", "Gpus", "Sets", "AsJson", "RunsDir", "Budget", "PriceGiven"} <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_a_shared_option_is_used_by_more_than_one_command_with_its_own_words(name):
    users = {command for command, parameter in parameters() if getattr(parameter, "help", None) == SHARED[name].help}
    assert len(users) > 1


def test_the_same_option_does_not_say_different_things_by_accident():
    by_words: dict[str, set[str]] = {}
    for _, parameter in parameters():
        for one in SHARED.values():
            if getattr(parameter, "help", None) == one.help:
                by_words.setdefault(one.help, set()).add(parameter.opts[-1].lstrip("-"))
    assert {words: names for words, names in by_words.items() if len(names) > 1} == {}


@pytest.mark.parametrize("name", SHARED)
def test_words_are_sentences_and_a_value_has_a_name(name):
    one = SHARED[name]
    assert one.help[0].isupper() or one.help[0].isdigit() or "=" in one.help.split()[0]
    assert one.help.endswith(".")
    assert one.metavar or name in FLAGS
