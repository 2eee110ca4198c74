"""When a run that goes on by itself is started again, and when it is not."""

from __future__ import annotations

import pytest

from meshwright.train.incidents import LOSSES, RESTARTS, Incident, Incidents, Limits


def fault(incidents: Incidents, step: int, reason: str = "signal", rank: int | None = 1, limits: Limits = RESTARTS) -> str:
    number = len(incidents.all) + 1
    incident = Incident(number=number, reason=reason, rank=rank, step=step, message=f"rank {rank} died", noticed_s=0.0)
    return incidents.refusal(incident, limits)


def test_faults_at_other_steps_are_tried_again_without_end() -> None:
    incidents = Incidents()
    assert [fault(incidents, step) for step in range(0, 900, 3)] == [""] * 300


def test_the_same_fault_at_the_same_step_is_not_tried_a_third_time() -> None:
    incidents = Incidents()
    assert fault(incidents, 12, "exception") == ""
    assert fault(incidents, 12, "exception") == "the same happened at step 12 before (incident 1), after a restart from a checkpoint"
    assert incidents.tried() == "incident 1 at step 12: rank 1 died; incident 2 at step 12: rank 1 died"


def test_another_fault_at_that_step_is_tried() -> None:
    incidents = Incidents()
    assert [fault(incidents, 12, reason) for reason in ("exception", "hang")] == ["", ""]


def test_faults_that_come_no_further_are_given_up() -> None:
    incidents = Incidents()
    found = [fault(incidents, step) for step in (20, 19, 18, 17, 16, 15)]
    assert found[:-1] == [""] * RESTARTS.most_without_progress
    assert found[-1] == "5 restarts in a row came no further than step 20"
    assert len(found) == RESTARTS.most_without_progress + 1


def test_a_newer_checkpoint_is_progress() -> None:
    incidents = Incidents()
    restarts = [Incident(number=n, reason="signal", rank=1, step=50 - n, message="", noticed_s=0.0, saved_step=n) for n in range(1, 30)]
    assert [incidents.refusal(one) for one in restarts] == [""] * 29


def test_losses_after_a_restart_are_counted_anew() -> None:
    incidents = Incidents()
    assert fault(incidents, 50, limits=LOSSES) == fault(incidents, 50, "hang") == ""
    assert [fault(incidents, step, limits=LOSSES) for step in range(30, 45)] == [""] * 15, "steps from the checkpoint on are progress"


def test_a_lost_replica_does_not_count_as_a_restart() -> None:
    incidents = Incidents()
    assert fault(incidents, 10, limits=LOSSES) == ""
    assert fault(incidents, 10) == "", "the other replica is killed too, while the first is left out: nothing was started again before"
    assert fault(incidents, 10) == "the same happened at step 10 before (incident 2), after a restart from a checkpoint"


def test_replicas_that_are_lost_again_and_again_end_the_run() -> None:
    incidents = Incidents()
    reasons = ("signal", "exception", "hang") * 3
    found = [fault(incidents, 10, reason, limits=LOSSES) for reason in reasons]
    assert found.index("6 losses of replicas in a row came no further than step 10") == LOSSES.most_without_progress


@pytest.mark.parametrize("reason", ["input", "interrupt"])
def test_what_does_not_pass_is_not_tried(reason: str) -> None:
    assert fault(Incidents(), 5, reason) == "it would fail again"


def test_what_is_lost_by_hand() -> None:
    times_s = {4: 1.0, 5: 1.0, 6: 2.0, 7: 3.0}
    incident = Incident(number=1, reason="hang", rank=None, step=7, message="hang", noticed_s=0.0, step_times_s=times_s)
    assert incident.lost(5) == (2, 5.0)
    assert incident.lost(7) == (0, 0.0)
