"""Signs of life of a process."""

from __future__ import annotations

import os
import signal
import time

from meshwright.train.elastic.pulse import MOST_GAP_S, Pulse, Vitals, is_stopped


def test_another_process_is_seen_to_count() -> None:
    pulse = Pulse()
    child = os.fork()
    if not child:
        pulse.beat()
        pulse.beat()
        os._exit(0)
    os.waitpid(child, 0)
    assert pulse.count == 2


def test_a_stopped_process_is_told_from_one_that_waits() -> None:
    child = os.fork()
    if not child:
        time.sleep(60.0)
        os._exit(0)
    try:
        assert not is_stopped(child)
        os.kill(child, signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)
        assert is_stopped(child)
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, os.WCONTINUED)
        assert not is_stopped(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert not is_stopped(child), "a process that is gone"


def test_time_is_added_up_while_a_process_is_stopped_or_silent() -> None:
    vitals = Vitals()
    vitals.look(False, 0.2)
    for _ in range(3):
        vitals.look(True, 0.2)
    assert (round(vitals.stopped_s, 6), round(vitals.silent_s, 6)) == (0.4, 0.6)
    vitals.pulse.beat()
    vitals.look(False, 0.2)
    assert (vitals.stopped_s, vitals.silent_s) == (0.0, 0.0)


def test_the_time_in_which_the_supervisor_was_stopped_itself_does_not_count() -> None:
    vitals = Vitals()
    vitals.look(True, 0.2)
    vitals.look(True, 3600.0)
    assert vitals.stopped_s == MOST_GAP_S
