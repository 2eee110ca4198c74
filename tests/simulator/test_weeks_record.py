"""Weeks as a run folder: every interruption, restart and second of work, worked by hand and read back."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from meshwright.describe.failures import Cause, Failures, failures
from meshwright.ledger import Budget, Rate
from meshwright.ledger.timeline import spans_of
from meshwright.record.run import Run, read_run
from meshwright.simulator.campaign import Campaign, Weeks
from meshwright.simulator.outlook import SAMPLED_STEPS, MeanStep, Outlook, campaign_of, outlook
from meshwright.simulator.run import Conditions, Paid, run_plan
from meshwright.simulator.weeks_record import write_weeks
from meshwright.units import DAY

CAUSES = (
    Cause(name="gpu", per_accelerator_hour=1e-4, loses_node=True),
    Cause(name="network", per_accelerator_hour=1e-4, loses_node=False),
)
STEP = MeanStep(
    seconds=10.0, standard_error_s=0.0, parts_s={}, median_s=10.0, robust_std_pct=0.0, evaluations_s=0.0, workload_steps=0, run_spread=0.0
)


def story(**changes: object) -> Weeks:
    """A thousand seconds: 400 of work to a fault, which loses 50 and takes 100 to come back from; a second fault strikes before that."""
    columns = {"wall_s": 1000.0, "work_s": 700.0, "lost_s": 60.0, "checkpoint_s": 20.0, "down_s": 220.0, "waiting_s": 0.0}
    one_seed = {name: np.array([value]) for name, value in columns.items()}
    told = {
        "when_s": (460.0, 500.0),
        "what": (0, 1),
        "done_s": (400.0, 400.0),
        "lost_by_s": (50.0, 50.0),
        "saved_by_s": (10.0, 10.0),
        "back_s": (560.0, 680.0),
    }
    counts = {"interruptions": np.array([[1, 1]]), "finished": np.array([False]), "complete": True}
    return Weeks(**{**one_seed, **told, **counts, **changes})


@pytest.fixture
def written(racks, tmp_path) -> Callable[..., Run]:
    """The folder of weeks, read back."""
    racks.write(tmp_path / "racks.json")
    told = Failures(name="made", causes=CAUSES, detection_s=20.0, restart_s=80.0, checkpoint_s=5.0, repair_s=3600.0)
    campaign = Campaign(failures=told, num_accelerators=256, accelerators_per_node=4, interval_s=100.0, num_spares=2)

    def write(happened: Weeks, name: str = "weeks", **options: object) -> Run:
        seen = Outlook(campaign=campaign, weeks=happened, step=STEP, usd_per_hour=None, time_to_train_s=None)
        sample = run_plan(racks, Conditions(), 3, 4)
        return read_run(write_weeks(seen, sample, tmp_path, name, tmp_path / "racks.json", **options))

    return write


def test_events_tell_when_what_and_where_the_seconds_went(written):
    start, first, second, back, end = written(story()).events
    assert (start.kind, start.step, start.time_s, start.detail["seed"]) == ("start", 0, 0.0, 4)
    spares = {"checkpoint_interval_s": 100.0, "num_spares": 2, "num_spare_accelerators": 8}
    assert spares.items() <= start.detail.items()
    assert start.detail["mean_parts_s"] == {part: round(part_s, 6) for part, part_s in STEP.parts_s.items() if part_s > 0}
    assert (first.kind, first.step, first.time_s) == ("fault", 40, 460.0)  # 400 s of work are 40 steps
    assert first.detail == {"cause": "gpu", "work_s": 400.0, "lost_s": 50.0, "checkpoint_s": 10.0}
    assert (second.step, second.detail) == (40, {"cause": "network", "work_s": 0.0, "lost_s": 0.0, "checkpoint_s": 0.0})
    assert (back.kind, back.time_s) == ("restart", 680.0)  # the first restart was struck before it was done, so it never was
    assert (end.kind, end.step, end.time_s) == ("finished", 70, 1000.0)
    assert end.detail == {"goodput": 0.7, "work_s": 300.0, "lost_s": 10.0, "checkpoint_s": 10.0}


def test_seconds_of_all_events_add_up_to_those_of_the_weeks(written):
    events = written(story()).events
    sums = {key: sum(event.detail.get(key, 0.0) for event in events) for key in ("work_s", "lost_s", "checkpoint_s")}
    assert sums == pytest.approx({"work_s": 700.0, "lost_s": 60.0, "checkpoint_s": 20.0})


def test_a_restart_after_the_end_is_none(written):
    run = written(story(back_s=(560.0, 1200.0)))
    assert [event.kind for event in run.events] == ["start", "fault", "fault", "finished"]


def test_weeks_without_an_interruption(written):
    none = {name: () for name in ("when_s", "what", "done_s", "lost_by_s", "saved_by_s", "back_s")}
    start, end = written(story(**none)).events
    assert end.detail == {"goodput": 0.7, "work_s": 700.0, "lost_s": 60.0, "checkpoint_s": 20.0} and start.kind == "start"


def test_weeks_that_were_broken_off_are_stopped(written):
    run = written(story(complete=False))
    assert run.events[-1].kind == run.header.status == "stopped" and "reason" not in run.events[-1].detail


def test_weeks_that_a_budget_ends_say_so_and_what_was_spent(written):
    rate = Rate(usd_per_gpu_hour=Decimal(3600), provider="us", kind="given", date="2026-11-15", source="a test")
    budget = Budget(usd=Decimal(300_000), rate=rate, num_gpus=264)
    run = written(story(), paid=Paid(rate=rate, budget=budget), cut=True)
    over, end = run.events[-2:]
    assert (over.kind, over.step, over.detail["budget_usd"], over.detail["spent_usd"]) == ("budget", 70, "300000", "264000.000000")
    assert (end.kind, end.detail["reason"], run.header.status) == ("stopped", "budget", "stopped")
    assert run.events[0].detail["budget_usd"] == "300000" and run.events[0].detail["price"] == rate.to_json()


def test_the_same_weeks_give_the_same_bytes(written, tmp_path):
    first, second = (written(story(), name=name) for name in ("a", "b"))
    assert first.events == second.events
    steps = [Path(tmp_path / name / "steps.jsonl").read_bytes() for name in ("a", "b")]
    assert steps[0] == steps[1] and steps[0].count(b"\n") == 3


def test_weeks_are_written_with_every_interruption(racks, tmp_path):
    racks.write(tmp_path / "racks.json")
    campaign = campaign_of(racks, failures("llama3"), 600.0, 2)
    seen = outlook(racks, Conditions(), campaign, 4, 3, 54 * DAY)
    sample = run_plan(racks, Conditions(), SAMPLED_STEPS + 1, 4)
    run = read_run(write_weeks(seen, sample, tmp_path, "weeks", tmp_path / "racks.json"))
    faults = [event for event in run.events if event.kind == "fault"]
    assert len(faults) == seen.weeks.interruptions[0].sum() > 0
    assert len(run.records) == SAMPLED_STEPS + 1
    assert run.events[-1].kind == run.header.status == "finished" and not run.damage
    # the last before the spares: its end is read as that of weeks that were stopped
    assert spans_of(run)[-2].end_s == pytest.approx(54 * DAY)
