"""When a run that goes on by itself is started again, and when it is not."""

from __future__ import annotations

import pytest

from meshwright.train.incidents import LOSSES, RESTARTS, Incident, Incidents, Limits

OUTSIDE = ("signal", "connection")


def fault(
    incidents: Incidents, step: int, reason: str = "signal", message: str = "rank 1 died", limits: Limits = RESTARTS, saved_step: int = -1
) -> str:
    incident = Incident(
        number=len(incidents.all) + 1,
        reason=reason,
        rank=1,
        step=step,
        message=message,
        noticed_s=0.0,
        from_outside=reason in OUTSIDE,
        saved_step=saved_step,
    )
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


def test_another_message_is_another_fault() -> None:
    incidents = Incidents()
    assert [fault(incidents, 12, "exception", message) for message in ("a full disk", "a lost disk")] == ["", ""]


def test_the_file_of_its_stacks_does_not_make_it_another_fault() -> None:
    messages = [f"rank 1 was killed by SIGSEGV, in split (stacks/generation-{number}-rank-1.txt)" for number in (2, 4)]
    incidents = Incidents()
    assert [bool(fault(incidents, 12, "exit", message)) for message in messages] == [False, True]


def test_the_generation_that_a_rank_did_not_come_to_does_not_make_it_another_fault() -> None:
    words = "rank 1 was in split (stacks/generation-{0}-rank-1.txt), and did not come to generation {0} within 15 s"
    incidents = Incidents()
    assert [bool(fault(incidents, 12, "hang", words.format(number))) for number in (3, 14)] == [False, True]


def test_how_long_it_hung_does_not_make_it_another_fault() -> None:
    incidents = Incidents()
    assert fault(incidents, 12, "hang", "rank 1 has not moved for 10.3 s: it is in evaluation") == ""
    assert fault(incidents, 12, "hang", "rank 1 has not moved for 11.0 s: it is in evaluation").startswith("the same happened at step 12")


@pytest.mark.parametrize("reason", OUTSIDE)
def test_kills_and_lost_connections_at_one_step_are_no_fault_of_the_program(reason: str) -> None:
    incidents = Incidents()
    found = [fault(incidents, 110, reason, saved_step=100) for _ in range(RESTARTS.most_without_progress + 1)]
    assert found[:-1] == [""] * RESTARTS.most_without_progress
    assert found[-1] == "5 restarts in a row came no further than step 110", "but a run that does not get on ends"


def test_kills_at_one_step_with_progress_between_them_are_borne_without_end() -> None:
    incidents = Incidents()
    assert [fault(incidents, step, saved_step=step) for step in range(10, 200, 10) for _ in range(4)] == [""] * 76


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
    assert fault(incidents, 10, "exception", limits=LOSSES) == ""
    assert fault(incidents, 10, "exception") == "", "the other replica fails too: nothing was started again before"
    assert fault(incidents, 10, "exception") == "the same happened at step 10 before (incident 2), after a restart from a checkpoint"


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
