"""What is said of a run under given faults."""

from __future__ import annotations

from meshwright.say.fault_trace import fault_trace_document
from meshwright.simulator.fault_trace import Replayed


def test_shares_and_times() -> None:
    found = Replayed(name="p", num_steps=90, num_faults=3, num_restarts=1, wall_s=100.0, work_s=90.0, lost_s=4.0, recovering_s=6.0)
    document = fault_trace_document(found)
    assert document.title == "p: 90 steps under 3 faults"
    assert document.to_json()["goodput"] == 0.9
    (pairs,) = document.blocks
    assert pairs.rows[0][:2] == ("effective time", "90.00 %")
