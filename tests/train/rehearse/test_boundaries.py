"""Boundaries between operations, and the seconds between them."""

from __future__ import annotations

import time

import torch

from meshwright.train.rehearse.boundaries import Boundaries, Stopwatch
from meshwright.train.rehearse.stand_in import PART, Ledger

CPU = torch.device("cpu")


def test_whoever_watches_is_called_after_the_mark_is_set() -> None:
    marks, seen = Boundaries(), []
    marks.do("before")
    marks.at = lambda: seen.append(marks.doing)
    marks.do("forward")
    marks.enter("all-gather", "tp", (0, 1))
    marks.leave()
    marks.do("backward")
    marks.at = None
    marks.do("after")
    assert seen == ["forward", "backward"] and marks.doing == "after" and marks.num_moves == 6


def test_a_stand_in_is_taken_out_of_the_operation_that_it_ran_in() -> None:
    now = [0.0]
    ledger = Ledger(CPU, clock=lambda: now[0])
    watch = Stopwatch(CPU, ledger)

    def work(seconds: float) -> None:
        now[0] += seconds

    with ledger.timer.part(PART):
        work(1.0)  # before the first boundary: of no operation
    watch.note()
    work(2.0)
    watch.note()
    work(5.0)
    with ledger.timer.part(PART):
        work(3.0)
    watch.note()
    assert watch.read() == [(2.0, 0.0), (5.0, 3.0)]


def test_a_thread_alone_is_timed_by_the_processor_and_several_by_the_wall() -> None:
    number = torch.get_num_threads()
    try:
        for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
            torch.set_num_threads(threads)
            assert Ledger(CPU).clock is clock
    finally:
        torch.set_num_threads(number)
