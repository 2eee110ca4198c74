"""Commands of a lab that are killed: nothing of them is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwright.lab import state, system
from meshwright.lab.description import Lab
from meshwright.lab.guard import guarded, marked

# A command that starts a process whose child is in a session of its own, so that neither signals to a group nor the parent's end reach it.
STARTS = """
import subprocess, sys, time
from meshwright.lab.guard import guarded
with guarded():
    subprocess.Popen(["sh", "-c", "setsid sleep 600 & setsid sleep 600 & echo started; wait"])
    time.sleep(600)
"""
MAKES = """
import sys
from pathlib import Path
from meshwright.lab import state
from meshwright.lab.description import Lab
state.up(Lab(name=sys.argv[1], num_ranks=1), Path(sys.argv[2]))
print("made", flush=True)
"""


def wait_until(is_so, within_s=60.0):
    until_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < until_s, "it did not come to pass"
        time.sleep(0.02)


def mark_of(pid: int) -> str:
    """The mark that the children of a process have."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        for word in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if word.startswith(b"MESHWRIGHT_GUARD_"):
                return word.partition(b"=")[0].decode()
    raise AssertionError("no child has a mark")


def test_what_a_killed_command_started_is_ended_also_in_sessions_of_its_own():
    command = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None and command.stdout.readline() == "started\n"
    mark = mark_of(command.pid)
    wait_until(lambda: len(marked(mark)) == 3)  # the shell and both that sleep
    os.kill(command.pid, signal.SIGKILL)
    wait_until(lambda: marked(mark) == [])
    command.wait()
    command.stdout.close()


def test_what_a_command_started_is_left_alone_if_the_command_ends():
    with guarded():
        child = subprocess.Popen(["sleep", "600"])
    try:
        time.sleep(0.3)
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()
    assert not [name for name in os.environ if name.startswith("MESHWRIGHT_GUARD_")]


@pytest.mark.parametrize("moment", range(6))
def test_a_lab_whose_making_is_killed_is_removed_or_whole(can_make_labs, tmp_path, moment):
    lab = Lab(name=f"k{moment}x{os.getpid() % 10**7}", num_ranks=1)
    folder = tmp_path / "labs"
    folder.mkdir()
    # The moments are spread over the namespaces that are made one after another; the last is after all of them, among links and addresses.
    wanted = [0, 1, 3, 5, 6, 7][moment]
    command = subprocess.Popen([sys.executable, "-c", MAKES, lab.name, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: len(system.namespaces(lab.prefix)) >= wanted or command.poll() is not None)
        time.sleep(random.Random(moment).random() * 0.05)
        os.kill(command.pid, signal.SIGKILL)
        assert command.stdout is not None
        was_made = command.stdout.read() == "made\n"
        if was_made:
            assert set(system.namespaces(lab.prefix)) == set(lab.namespaces())
        else:
            wait_until(lambda: not system.namespaces(lab.prefix) and not list(folder.iterdir()))
    finally:
        command.wait()
        command.stdout.close()
        state.down(lab.name, folder)


def test_links_get_their_rates_back_if_the_command_that_changed_them_is_killed(make, tmp_path):
    made = make(num_racks=2, num_hosts=1)
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom meshwright.lab import state\nfrom meshwright.lab.guard import guarded\n"
        "name, folder = sys.argv[1], Path(sys.argv[2])\n"
        "with guarded('links', name, str(folder)):\n"
        "    state.change_link(state.read_state(name, folder), 'rack0', bits_per_s=2e7, folder=folder)\n"
        "    state.change_link(state.read_state(name, folder), 'r1h0', is_up=False, folder=folder)\n"
        "    print('changed', flush=True)\n    time.sleep(600)\n"
    )
    command = subprocess.Popen([sys.executable, "-c", code, made.lab.name, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None and command.stdout.readline() == "changed\n"
    uplink = ("tc", "-n", made.lab.rack_switch(0, 0), "qdisc", "show", "dev", "up0")
    assert "rate 20Mbit" in system.execute(uplink)
    os.kill(command.pid, signal.SIGKILL)
    wait_until(lambda: state.read_state(made.lab.name, tmp_path) == made)
    assert "rate 100Mbit" in system.execute(uplink)
    command.wait()
    command.stdout.close()
