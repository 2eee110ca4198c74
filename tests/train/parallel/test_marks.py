"""Where a rank is, as the watchdog reads it: what it does, whom it waits for, and whether it has moved."""

from __future__ import annotations

from meshwright.train.parallel.marks import Marks


def test_each_change_is_a_move() -> None:
    marks = Marks()
    assert (marks.doing, marks.waits, marks.num_moves) == ("starting", None, 0)
    marks.do("forward of chunk 0")
    marks.enter("all-gather", "tp", [0, 1])
    assert marks.doing == "forward of chunk 0" and marks.waits == ("all-gather", "tp", [0, 1])
    marks.leave()
    assert marks.doing == "forward of chunk 0" and marks.waits is None
    assert marks.num_moves == 3
