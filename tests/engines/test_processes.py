"""Processes end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from meshwright.engines.processes import ended, started


def until(met, within_s=20.0):
    until_s = time.monotonic() + within_s
    while not met():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_output_is_in_the_file_and_variables_are_set(tmp_path):
    process = started(["sh", "-c", "echo $A; echo b >&2"], tmp_path / "log", {"A": "a"})
    assert process.wait(20) == 0 and (tmp_path / "log").read_text() == "a\nb\n"
    process.stdin.close()


def test_the_end_of_the_input_ends_what_waits_for_it_and_the_rest_is_killed(tmp_path):
    reader, deaf = started(["cat"], tmp_path / "a"), started(["sleep", "60"], tmp_path / "b")
    ended([reader, deaf], 0.3)
    assert (reader.returncode, deaf.returncode) == (0, -9)


def test_a_killed_parent_leaves_nothing(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from meshwright.engines.processes import started;"
        "print(started(['sleep', '60'], Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()

    def is_gone():
        try:
            with open(f"/proc/{child}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            return True

    until(is_gone)
    assert not os.path.exists(f"/proc/{child}/fd/0") or is_gone()
