"""`meshwright lab`: what it refuses, and a small lab from up to down where root allows one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshwright.lab import state, system

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from conftest import why_not


@pytest.fixture
def verb() -> str:
    return "lab"


@pytest.fixture
def lab_name(monkeypatch, tmp_path):
    """The name of a lab that is removed at the end; its files are in the test's folder."""
    if reason := why_not():
        pytest.skip(f"no lab can be made here: {reason}")
    path_of, description_path = state.path_of, state.description_path
    monkeypatch.setattr(state, "path_of", lambda name, folder=None: path_of(name, tmp_path))
    monkeypatch.setattr(state, "description_path", lambda name, folder=None: description_path(name, tmp_path))
    name = f"c{os.getpid() % 10**8}"
    yield name
    state.down(name)


def test_without_root_every_command_says_so(run, monkeypatch):
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    for words in (["up"], ["status"], ["down"], ["run", "hostname"]):
        code, out, err = run(*words)
        assert (code, out) == (2, "") and err.startswith("meshwright: a lab needs root"), words


@pytest.mark.parametrize(
    "words, what",
    [
        (["up", "--rail", "fast"], "--rail is 'fast', which is no rate"),
        (["up", "--name", "a-b"], "'a-b' is no name for a lab"),
        (["up", "--racks", "0"], "--racks is '0'"),
        (["link", "rack0"], "nothing is to be changed"),
        (["run"], "no command to run"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(run, words, what, monkeypatch):
    monkeypatch.setattr(system, "check_able", lambda: None)
    code, out, err = run(*words)
    assert (code, out) == (2, "") and err.startswith(f"meshwright: {what}") and "fix:" in err


def test_a_lab_from_up_to_down(run, lab_name):
    code, out, _ = run("up", "--racks", "1", "--hosts", "2", "--ranks", "1", "--name", lab_name)
    assert code == 0 and out.startswith(f"lab {lab_name}: 1 rack x 2 hosts x 1 rank, rail 2gbit, uplink 100mbit")
    code, out, err = run("up", "--name", lab_name)
    assert code == 2 and f"a lab named '{lab_name}'" in err
    assert run("run", "--name", lab_name, "--", "sh", "-c", "test $WORLD_SIZE = 2")[0] == 0
    code, out, _ = run("link", "rack0", "--down", "--name", lab_name)
    assert code == 0 and "cut" in out
    assert run("status", "--name", lab_name)[1] == out
    assert run("run", "--name", lab_name, "--", "false")[0] == 1
    code, out, _ = run("down", "--name", lab_name)
    assert (code, out) == (0, f"removed lab {lab_name}: 4 namespaces and 0 processes\n")
    assert run("down", "--name", lab_name)[1] == f"nothing of lab {lab_name} was there\n"
