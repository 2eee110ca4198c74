"""What a lab needs of the machine, and how commands are run on it."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from meshwright.errors import InputError, MeshwrightError
from meshwright.lab import system


def test_a_missing_tool_is_named_with_its_package(monkeypatch):
    monkeypatch.setattr(system.shutil, "which", lambda tool, path: None if tool == "tc" else f"/usr/sbin/{tool}")
    with pytest.raises(InputError) as found:
        system.check_able()
    assert found.value.what == "a lab needs tc, which this machine does not have"
    assert found.value.fix == "install iproute2: apt-get install iproute2"


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(system.shutil, "which", lambda tool, path: f"/usr/sbin/{tool}")
    monkeypatch.setattr(system.os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match=r"a lab needs root, .* and this is user 1000"):
        system.check_able()


def test_a_command_that_fails_is_quoted_with_its_reason():
    with pytest.raises(MeshwrightError, match="`sh -c echo no >&2; exit 3` failed: no"):
        system.execute(("sh", "-c", "echo no >&2; exit 3"))
    with pytest.raises(MeshwrightError, match="no-such-program"):
        system.execute(("no-such-program",))
    assert system.execute(("echo", "yes")) == "yes\n"


def test_processes_in_a_namespace_are_found_and_ended(make):
    lab = make(num_racks=1, num_hosts=1).lab
    namespace = lab.namespace(lab.hosts[0])
    child = subprocess.Popen(["ip", "netns", "exec", namespace, "sleep", "60"])
    try:
        until_s = time.monotonic() + 5
        while not system.processes(namespace) and time.monotonic() < until_s:
            time.sleep(0.02)
        assert system.processes(namespace) == [child.pid]
        assert system.end_processes([namespace]) == 1
        assert child.wait(5) == -9
    finally:
        child.kill()
    assert os.getpid() not in system.processes(namespace)
