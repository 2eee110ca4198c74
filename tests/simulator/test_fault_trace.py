"""A run under given faults, by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.plan.plan import Plan
from meshwright.simulator.fault_trace import FaultTrace, Recovery, TracedFault, read_trace, replayed

RECOVERY = Recovery(step_s=1.0, notice_s={"kill": 0.5, "stop": 7.0}, regroup_s=1.5, return_s=3.0, join_s=0.25, restart_s=10.0)
TEXT = """
num_steps = 20
checkpoint_steps = 10

[recovery]
step_s = 1.0
notice_s = { kill = 0.5, stop = 7.0 }
regroup_s = 1.5
return_s = 3.0
join_s = 0.25
restart_s = 10.0

[[faults]]
time_s = 4.5
what = "kill"
num_replicas = 1
"""


@pytest.fixture
def two(small: Callable[..., Plan]) -> Plan:
    """A plan of two replicas with 8 micro-batches each."""
    return small("tp=4,pp=2,dp=2,mbs=1", gpus=16, batch=16)


def under(plan: Plan, *faults: TracedFault, num_steps: int = 20) -> tuple[float, float, float, float, int]:
    found = replayed(plan, FaultTrace(num_steps=num_steps, checkpoint_steps=10, recovery=RECOVERY, faults=faults))
    assert found.work_s + found.lost_s + found.recovering_s == pytest.approx(found.wall_s)
    return found.wall_s, found.work_s, found.lost_s, found.recovering_s, found.num_restarts


def kill(time_s: float, num_replicas: int = 1) -> TracedFault:
    return TracedFault(time_s=time_s, what="kill", num_replicas=num_replicas)


def test_without_faults_all_is_work(two: Plan) -> None:
    assert under(two) == (20.0, 20.0, 0.0, 0.0, 0)


def test_a_lost_replica_comes_back(two: Plan) -> None:
    # 4 steps, half a step in flight, 2 s until the other goes on at half the speed, ready 3 s later: 2 slow steps, then a join and 14 steps
    assert under(two, kill(4.5)) == pytest.approx((4.5 + 2 + 2 * 2 + 0.25 + 14, 4 + 4 + 14, 0.5, 2.25, 0))


def test_connections_that_break_take_no_replica(two: Plan) -> None:
    assert under(two, kill(4.5, 0)) == pytest.approx((20.0 + 0.5 + 2.0, 20.0, 0.5, 2.0, 0))


def test_no_replica_left_goes_back_to_the_checkpoint(two: Plan) -> None:
    assert under(two, kill(13.5, 2)) == pytest.approx((13.5 + 10.5 + 10.0, 20.0, 3.5, 10.5, 1))


def test_a_fault_during_a_recovery_begins_it_anew(two: Plan) -> None:
    wall_s, _, lost_s, recovering_s, restarts = under(two, kill(4.0), kill(5.0))
    assert (restarts, lost_s, recovering_s) == (1, 4.0, 1.0 + 0.5 + 10.0)
    assert wall_s == pytest.approx(5.0 + 10.5 + 20.0)


def test_faults_after_the_end_do_not_strike(two: Plan) -> None:
    trace = FaultTrace(num_steps=5, checkpoint_steps=10, recovery=RECOVERY, faults=(kill(50.0),))
    assert (replayed(two, trace).num_faults, replayed(two, trace).ettr) == (0, 1.0)


def test_a_file(tmp_path: Path, two: Plan) -> None:
    (tmp_path / "faults.toml").write_text(TEXT)
    trace = read_trace(tmp_path / "faults.toml")
    assert trace == FaultTrace(num_steps=20, checkpoint_steps=10, recovery=RECOVERY, faults=(kill(4.5),))


@pytest.mark.parametrize(
    "old, new, message",
    [
        ('what = "kill"', 'what = "fire"', "does not say after how long a fault of kind 'fire' is noticed"),
        ("kill = 0.5", "kill = -1.0", "noticed after -1.0 s"),
        ("step_s = 1.0", "step_s = 0.0", "step_s"),
        ("num_replicas = 1", "num_replicas = -1", "num_replicas"),
        ("num_steps = 20", "num_steps = 20000000000", "num_steps"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "faults.toml").write_text(TEXT.replace(old, new))
    with pytest.raises(InputError, match=message):
        read_trace(tmp_path / "faults.toml")
