"""Ranks start, meet and end together; whoever fails first is named, and nobody is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from entries import ranks_that
from small_run import Command, start, until

from meshwright.train.launch import HANDED_ON, explain_failure, forked, handing_on


def ranks(folder: Path, what: str) -> Command:
    return start(folder, [what], entry=ranks_that)


def test_all_end_well(tmp_path: Path) -> None:
    command = ranks(tmp_path, "finish")
    assert command.wait() == 0
    assert sorted(command.err.splitlines()) == ["rank 0 of 2", "rank 1 of 2"]


def test_what_rank_0_decides_is_known_to_all(tmp_path: Path) -> None:
    command = ranks(tmp_path, "agree")
    assert (command.wait(), command.err) == (0, "")


def test_bad_input_is_reported_once(tmp_path: Path) -> None:
    command = ranks(tmp_path, "refuse")
    assert command.wait() == 2
    assert command.err == "meshwright: no such thing\n  where: the input\n  fix:   give another\n"


def test_the_others_are_ended_with_one_that_fails(tmp_path: Path) -> None:
    command = ranks(tmp_path, "break")
    assert command.wait(60.0) == 1
    assert command.err.startswith("meshwright: rank 1 failed: ZeroDivisionError: division by zero\nTraceback")
    assert command.err.count("meshwright: ") == 1


def test_who_was_killed_is_reported_and_not_who_noticed(tmp_path: Path) -> None:
    command = ranks(tmp_path, "lose")
    assert command.wait(60.0) == 1
    assert command.err == "meshwright: rank 1 was killed by SIGKILL: often because the machine is out of memory\n"


def test_who_was_killed_is_reported_and_not_who_failed_because_of_it(tmp_path: Path) -> None:
    command = ranks(tmp_path, "lose memory")
    assert command.wait(60.0) == 1
    assert command.err == "meshwright: rank 1 was killed by SIGKILL: often because the machine is out of memory\n"


def test_a_second_control_c_ends_ranks_that_do_not_listen(tmp_path: Path) -> None:
    command = ranks(tmp_path, "ignore")
    until(lambda: command.out.count("ready") == 2)
    for _ in range(2):
        os.kill(command.pid, signal.SIGINT)
        time.sleep(0.3)
    assert command.wait(60.0) == 130


def test_a_lost_connection_is_no_cause() -> None:
    assert explain_failure(RuntimeError("[gloo] Connection closed by peer"), 3) == (
        False,
        "meshwright: rank 3 lost the connection to another rank",
    )
    is_cause, message = explain_failure(RuntimeError("size mismatch\nand more"), 3)
    assert is_cause
    assert message.startswith("meshwright: rank 3 failed: RuntimeError: size mismatch\n")


def test_loading_the_trainer_asks_nothing_of_cuda() -> None:
    """A parent that has asked CUDA anything cannot fork ranks that use it."""
    code = (
        "import torch\n"
        "def asked(*_): raise AssertionError('CUDA was asked')\n"
        "torch._C._cuda_getDeviceCount = torch.cuda.is_available = torch.cuda.device_count = asked\n"
        "import meshwright.train.session, meshwright.train.launch, meshwright.cli.train_run"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_rank_that_is_forked_after_a_signal_receives_it() -> None:
    with handing_on() as handing:
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: handing.asked)
        before = signal.pthread_sigmask(
            signal.SIG_BLOCK, HANDED_ON
        )  # as where ranks are forked: it must not handle them as its parent does
        handing.add(forked(0, lambda heard, said: time.sleep(60.0), before))
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        child = handing.children[0].process
        child.join(20.0)
    assert (handing.asked, child.exitcode) == ([signal.SIGTERM], -signal.SIGTERM)
