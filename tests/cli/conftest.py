"""How the tests of a command run it: `run` for what it prints, `answer` for its JSON. The module says which, as fixture `verb`."""

from __future__ import annotations

import json

import pytest

from meshwright.cli.main import main


@pytest.fixture(autouse=True)
def no_profile_of_ones_own(tmp_path_factory, monkeypatch):
    """A profile of this machine in the user's cache must not change what tests see."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def run(verb, capsys):
    def run_command(*arguments):
        code = main([verb, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


@pytest.fixture
def answer(run):
    def answer_of(*arguments):
        code, out, err = run(*arguments, "--json")
        assert (code, err) == (0, "")
        return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))

    return answer_of
