"""The processes of one replica, with processes that only sleep."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest

from meshwright.train.elastic.group import READY_S, Group
from meshwright.train.elastic.pulse import Vitals
from meshwright.train.health.watch import START_SILENCE_S
from meshwright.train.launch import forked

STALL_S = 10.0


def echoes(heard: Connection, said: Connection) -> None:
    """Say what is heard, without end."""
    while True:
        said.send(heard.recv())


@pytest.fixture
def group() -> Iterator[Group]:
    """A replica of two ranks that has just been started."""
    children = [forked(rank, echoes, set()) for rank in (2, 3)]
    yield Group(1, children, [Vitals(), Vitals()], started_s=time.monotonic())
    for child in children:
        child.end_now()


def test_it_is_ready_when_all_its_processes_are_and_all_are_told(group: Group) -> None:
    group.ready[2] = 1.0
    assert not group.is_ready
    assert [(one.rank, one.pid, one.ready_s) for one in group.expected()] == [
        (2, group.children[0].process.pid, 1.0),
        (3, group.children[1].process.pid, math.inf),
    ]
    group.ready[3] = 2.0
    group.send("change", "[1]")
    assert group.is_ready and [child.end.recv() for child in group.children] == [("change", "[1]")] * 2


def test_a_process_that_has_ended_is_not_expected_and_not_missed(group: Group) -> None:
    group.ready.update({2: 1.0, 3: 1.0})
    group.vitals[0].silent_s = 1000.0
    group.children[0].end_now()
    group.send("change")  # nobody reads it
    assert [one.rank for one in group.expected()] == [3]
    assert group.lifeless(STALL_S, group.started_s + 2 * READY_S, 0.2) is None


def test_a_process_that_is_stopped_silent_or_never_ready_is_found(group: Group) -> None:
    now_s = group.started_s
    late = group.lifeless(STALL_S, now_s + READY_S + 1.0, 0.2)
    assert late is not None and (late.reason, late.rank, late.message) == ("hang", 2, "rank 2 was not ready 600 s after its start")
    group.ready.update({2: now_s, 3: now_s})
    assert group.lifeless(STALL_S, now_s, 0.2) is None
    group.vitals[1].silent_s = START_SILENCE_S
    silent = group.lifeless(STALL_S, now_s, 0.2)
    assert silent is not None and silent.message.startswith("rank 3 gave no sign of life for 30 s") and not silent.from_outside
    pid = group.children[1].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    group.lifeless(2.0, now_s, 1.0)
    group.vitals[1].stopped_s, group.vitals[1].silent_s = 1.5, 0.0
    stopped = group.lifeless(2.0, now_s, 1.0)
    assert stopped is not None and stopped.from_outside
    assert stopped.message == "rank 3 was stopped by a signal, and not continued for 2.5 s"
