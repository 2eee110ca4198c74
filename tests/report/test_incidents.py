"""Rows about what broke."""

from __future__ import annotations

from meshwright.record.entries import Event
from meshwright.report.incidents import incident_rows


def test_incidents_are_rows_with_what_they_cost() -> None:
    detail = {"broke_at_step": 8, "action": "restarted from step 5", "num_lost_steps": 3, "noticed_after_s": 0.5, "down_s": 1.25}
    known = Event(time_s=9.0, kind="incident", step=6, detail={**detail, "cost_usd": "0.25", "message": "rank 1 was killed; restarted"})
    bare = Event(time_s=9.0, kind="incident", step=6, detail={"message": "rank 1 was killed"})
    first, second = incident_rows([known, Event(time_s=1.0, kind="start", step=0), bare])
    assert first == ("9 s", "8", "rank 1 was killed", "restarted from step 5", "500 ms", "1.25 s", "3", "$0.25")
    assert second[:3] == ("9 s", "6", "rank 1 was killed") and len(set(second[3:])) == 1


def test_a_step_that_was_done_again_is_an_incident() -> None:
    message = "the loss of step 7 is NaN or infinite; the step was done again"
    detail = {"outcome": "sound", "lost_s": 0.5, "cost_usd": "0.01", "message": message}
    (row,) = incident_rows([Event(time_s=9.0, kind="replay", step=6, detail=detail)])
    assert row[1:4] == ("6", "the loss of step 7 is NaN or infinite", "step done again, normal")
    assert row[5:] == ("500 ms", "1", "$0.01")
