"""`meshwright measure --cluster`: what it refuses, and the tiers of a small lab where root allows one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.describe.profile import load_profile
from meshwright.lab import state, system

sys.path.insert(0, str(Path(__file__).parents[1] / "lab"))

from conftest import why_not

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--base", "profile.json"], "a profile to add to is given, but no cluster"),
        (["--cluster", "lab.toml"], "no launcher started this process"),
        (["--cluster", "nosuch"], "no lab named 'nosuch' is up"),
        (["--cluster", "lab", "--out", "profile.txt"], "a profile is a .json file"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments, message, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(system, "check_able", lambda: None)
    if "lab" in arguments:
        monkeypatch.setattr(state, "read_state", lambda name: state.State(lab=state.Lab(name=name)))
    assert main(["measure", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_tiers_of_a_lab_are_timed_between_its_hosts(tmp_path, capsys):
    if reason := why_not():
        pytest.skip(f"no lab can be made here: {reason}")
    name, out = f"m{os.getpid() % 10**8}", tmp_path / "profile.json"
    try:
        assert main(["lab", "up", "--name", name, "--hosts", "1", "--ranks", "1", "--uplink", "500mbit"]) == 0
        base = FIXTURES / "profile_of_cores.json"
        assert main(["measure", "--cluster", name, "--base", str(base), "--out", str(out)]) == 0
    finally:
        assert main(["lab", "down", "--name", name]) == 0
    profile = load_profile(out)
    assert [tier.name for tier in profile.tiers] == ["host", "spine"] and {one.members for one in profile.between_hosts} == {(1, 2)}
    largest = max((one for one in profile.between_hosts if one.kind == "message"), key=lambda one: one.payload_bytes)
    assert largest.payload_bytes / largest.seconds < 500e6 / 8  # no faster than the link
    assert "collectives between hosts: host, spine" in capsys.readouterr().out
