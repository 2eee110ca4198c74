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
    ledger = Ledger(CPU)
    watch = Stopwatch(CPU, ledger)
    with ledger.timer.part(PART):
        time.sleep(0.01)  # before the first boundary: of no operation
    watch.note()
    time.sleep(0.02)
    watch.note()
    with ledger.timer.part(PART):
        time.sleep(0.03)
    watch.note()
    (first_s, no_stand_in_s), (second_s, stand_in_s) = watch.read()
    assert first_s >= 0.02 and no_stand_in_s == 0.0
    assert stand_in_s >= 0.03 and 0.0 <= second_s < first_s
