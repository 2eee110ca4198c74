"""The options that train and tune share: one declaration, and the names that the wishes of a run have for them."""

from __future__ import annotations

import inspect
from dataclasses import fields

from meshwright.cli import run_options
from meshwright.cli.run_options import named_wishes
from meshwright.cli.train import train
from meshwright.cli.train_arguments import Wishes
from meshwright.cli.tune import tune
from meshwright.cli.tune_arguments import Tuning


def test_options_get_the_names_of_wishes() -> None:
    assert named_wishes({"grace": 3.0, "data": "x", "seed": 1}) == {"grace_s": 3.0, "corpus": "x", "seed": 1}


def test_every_option_of_both_commands_is_a_wish_or_of_fine_tuning() -> None:
    wishes, own = {field.name for field in fields(Wishes)}, {field.name for field in fields(Tuning)}
    for command, others in ((train, set[str]()), (tune, own | {"out", "show"})):
        names = set(inspect.signature(command).parameters) - {"context"}
        assert set(named_wishes(dict.fromkeys(names))) <= wishes | others


def test_what_both_commands_have_they_have_from_one_place() -> None:
    shared = {name for name, value in vars(run_options).items() if name[0].isupper() and name.isidentifier() and name != "RENAMED"}
    of_train, of_tune = (inspect.get_annotations(command) for command in (train, tune))
    both = {name for name in of_train if str(of_train[name]).startswith("options.") and name in of_tune}
    assert len(both) >= 12 and all(of_train[name] == of_tune[name] for name in both)
    assert {str(of_train[name]).removeprefix("options.") for name in both} <= shared
