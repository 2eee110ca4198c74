"""What ways of surviving failures are worth: numbers worked by hand, and what grows with the machine."""

from __future__ import annotations

import pytest

from meshwright.describe.failures import Cause, Failures, failures
from meshwright.predict.mechanisms import going_on, mechanisms


def test_replicas_that_go_on_by_hand() -> None:
    """One failure an hour on 100 replicas of 10: a replica is away for 360 s; all stand still for 7 s and a step of 2 s."""
    rare = Failures(
        name="a",
        causes=(Cause(name="x", per_accelerator_hour=1 / 1000, loses_node=True),),
        detection_s=60,
        restart_s=300,
        checkpoint_s=5,
        repair_s=36000,
    )
    assert going_on(rare, 1000, 10, 2.0, has_spares=True) == pytest.approx((1 - 0.1 / 100) / (1 + 9 / 3600))
    assert going_on(rare, 1000, 10, 2.0, has_spares=False) == pytest.approx((1 - 10 / 100) / (1 + 9 / 3600))


@pytest.mark.parametrize("size", [1024, 8192, 131072])
def test_each_mechanism_is_worth_something_where_failures_are_frequent(size: int) -> None:
    found = {one.name: one.goodput for one in mechanisms(failures("llama3"), size, 4, 64, 1.25)}
    assert all(0.0 <= share <= 1.0 for share in found.values())
    assert (
        found["restart from disk, no spare nodes"] <= found["restart from disk, spare nodes"] <= found["restart from memory, spare nodes"]
    )
    assert found["restart from memory, spare nodes"] < found["other replicas go on, spare nodes"]


def test_a_machine_where_nothing_breaks_loses_only_its_checkpoints() -> None:
    assert [one.goodput for one in mechanisms(failures("none"), 1024, 4, 64, 1.25)][-2:] == [1.0, 1.0]
