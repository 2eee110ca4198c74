"""SIGTERM is a wish that the loop grants; a second Ctrl-C ends the rank."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from meshwright.train.health.signals import StopSignal


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of this process are as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_nobody_asked_at_first_and_all_of_the_grace_is_left() -> None:
    ours = StopSignal()
    assert not ours.is_asked and ours.left_s(30.0) == 30.0


def test_a_signal_asks_and_the_grace_runs_down_to_a_second() -> None:
    ours = StopSignal()
    os.kill(os.getpid(), signal.SIGTERM)
    assert ours.is_asked and 29.0 < ours.left_s(30.0) <= 30.0
    ours.asked_s = time.monotonic() - 29.5
    assert ours.left_s(30.0) == 1.0


def test_the_first_asking_counts() -> None:
    ours = StopSignal()
    os.kill(os.getpid(), signal.SIGTERM)
    first = ours.asked_s
    os.kill(os.getpid(), signal.SIGTERM)
    assert ours.asked_s == first


def test_a_second_interrupt_ends_the_rank() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ours = StopSignal()
    os.kill(os.getpid(), signal.SIGINT)
    assert ours.is_asked
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupt_that_the_parent_hands_on_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ours = StopSignal()
    os.kill(os.getpid(), signal.SIGINT)
    assert not ours.is_asked and signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_the_handlers_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=StopSignal)
    thread.start()
    thread.join()
    assert signal.getsignal(signal.SIGTERM) is before
