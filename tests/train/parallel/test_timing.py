"""Parts of a step by a stream's events, with events that note what is asked of them."""

from __future__ import annotations

import pytest
import torch

from meshwright.train.parallel.timing import HostTimer, StreamTimer


class Event:
    """An event on a stream whose clock goes on by one millisecond with every record."""

    now_ms = 0.0
    waited = 0
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1
        self.at_ms = -1.0

    def record(self) -> None:
        Event.now_ms += 1.0
        self.at_ms = Event.now_ms

    def synchronize(self) -> None:
        Event.waited += 1

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms


@pytest.fixture
def timer(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.now_ms, Event.waited, Event.made = 0.0, 0, 0
    return StreamTimer()


def test_nobody_waits_for_a_step_before_its_times_are_read(timer):
    with timer.part("wait_end"), timer.part("optimizer"):
        pass
    read = timer.later()
    with timer.part("optimizer"):  # of the next step
        pass
    assert Event.waited == 0
    assert read() == {"optimizer": [pytest.approx(1e-3)], "wait_end": [pytest.approx(3e-3)]} and Event.waited == 2
    assert timer.take() == {"optimizer": [pytest.approx(1e-3)]}


def test_events_are_used_again_once_they_are_read(timer):
    for _ in range(5):
        with timer.part("optimizer"):
            pass
        timer.take()
    assert Event.made == 2
    assert timer.take() == {}


def test_a_host_that_is_its_own_device_has_its_times_at_once():
    timer = HostTimer()
    with timer.part("data"):
        pass
    read = timer.later()
    assert timer.take() == {} and list(read()) == ["data"] and read()["data"][0] >= 0.0


def test_the_time_between_two_moments_is_a_part_too_and_their_events_are_not_used_again(timer):
    start = timer.moment()
    with timer.part("optimizer"):
        end = timer.moment()
    timer.span("away", start, end)
    assert timer.take() == {"away": [pytest.approx(2e-3)], "optimizer": [pytest.approx(2e-3)]}
    with timer.part("optimizer"):
        pass
    assert Event.made == 4 and start.at_ms == 1.0
    host = HostTimer()
    host.span("away", 1.0, 3.5)
    assert host.take() == {"away": [2.5]}
