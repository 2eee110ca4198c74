"""A run's facts add up, and what is wrong with a folder is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.job import Job
from meshwright.plan.plan import Plan, plan_bytes, plan_of
from meshwright.report.facts import busy_note, facts_of_runs
from meshwright.report.page.run_sections import events_part


def facts(*folders: Path):
    return facts_of_runs(folders)


def seconds_by_key(run) -> dict[str, float]:
    return {cost.key: cost.seconds for cost in run.time.costs}


def test_time_is_samples_and_fixed_costs(make_run) -> None:
    # 40 steps: 39 of 0.5 s and one of 2 s; an evaluation of 3 s, a save that stalls for 1 s, a start of 4 s, 0.5 s that nobody counts.
    times = [0.5] * 40
    times[10] = 2.0
    events = [
        ("start", 0, 4.0, {}),
        ("checkpoint", 20, 16.5, {"saved_step": 20, "stall_s": 1.0}),
        ("evaluation", 40, 30.0, {"loss": 3.9, "seconds": 3.0, "samples": 640}),
    ]
    (run,) = facts(make_run(times_s=times, events=events, target=4.0))
    assert (run.time.samples, run.time.seconds_per_sample) == (640, 0.5 / 16)
    assert seconds_by_key(run) == pytest.approx(
        {"samples": 20.0, "steps": 1.5, "evaluation": 3.0, "checkpoint": 1.0, "start": 4.0, "between": 0.5}
    )
    assert run.time.total_s == pytest.approx(30.0) == pytest.approx(run.ledger.wall_s)
    assert run.time.fixed_s == pytest.approx(10.0)
    assert run.reached_target and run.evaluations[0].loss == 3.9


def test_the_plans_prediction_is_read_with_the_run(make_run, workstation: Plan) -> None:
    (run,) = facts(make_run(plan=workstation, batch=256))
    assert run.plan == workstation and run.model == "llama-3.2-1b" and run.batch == 256 and run.notes == ()


def test_weeks_whose_steps_are_a_sample_count_all_their_steps(make_run, record: Plan) -> None:
    events = [
        ("start", 0, 0.0, {"checkpoint_interval_s": 600.0}),
        ("fault", 1000, 1000.0, {"cause": "network", "work_s": 900.0, "lost_s": 60.0, "checkpoint_s": 40.0}),
        ("restart", 1000, 1300.0, {}),
        ("stopped", 3000, 3400.0, {"work_s": 2000.0, "lost_s": 0.0, "checkpoint_s": 100.0}),
    ]
    (run,) = facts(make_run(kind="simulated", plan=record, batch=1024, times_s=[1.0] * 64, events=events))
    assert run.time.samples == 3000 * 1024 and run.time.total_s == pytest.approx(3400.0)
    seconds = seconds_by_key(run)
    assert (seconds["samples"], seconds["lost"], seconds["checkpoint"], seconds["stopped"]) == pytest.approx((3000.0, 60.0, 140.0, 300.0))
    assert run.notes == ("Of 3,000 simulated steps 64 are recorded: step times and parts are those of that sample.",)


def test_a_run_whose_steps_are_all_there_is_no_sample(make_run, record: Plan) -> None:
    (run,) = facts(make_run(kind="simulated", plan=record, batch=1024, times_s=[1.0] * 64, events=[("stopped", 64, 64.0, {})]))
    assert run.notes == () and run.time.samples == 64 * 1024


def test_calls_that_had_not_finished_are_shown_with_the_failure(make_run) -> None:
    words = "all-reduce 9 of the group of ranks 0, 1, float64 [29]: rank 0 had entered it, rank 1 left no trace"
    folder = make_run(
        status="failed", events=[("start", 0, 1.0, {}), ("stall", 4, 9.0, {"message": "rank 1 has stopped", "flight": words})]
    )
    (run,) = facts(folder)
    assert f"Calls that had not finished: {words}." in run.notes
    assert f"rank 1 has stopped. Calls that had not finished: {words}." in events_part(run)


def test_memory_is_the_most_that_a_step_recorded(make_run) -> None:
    (run,) = facts(make_run(extra={"memory_bytes": 3e9}))
    (other,) = facts(make_run("other"))
    assert run.measured_memory_bytes == 3e9 and other.measured_memory_bytes is None


def test_runs_of_one_name_are_distinguished_by_their_folders(make_run, tmp_path: Path) -> None:
    one = make_run("same")
    (tmp_path / "copy").mkdir()
    other = one.rename(tmp_path / "copy" / "same")
    first = make_run("same")
    assert [run.label for run in facts(first, other)] == [str(first), str(other)]


def test_a_step_that_takes_longer_than_time_lasts_is_a_damaged_line(make_run) -> None:
    folder = make_run()
    lines = (folder / "steps.jsonl").read_text().splitlines()
    lines[20] = json.dumps({**json.loads(lines[20]), "step_s": 1e308})
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (run,) = facts(folder)
    assert run.noise is not None and run.summary.worst_step_s == 0.5
    assert any("steps.jsonl line 21: step_s of step 21 is 1e+308" in note for note in run.notes)


def test_a_half_written_last_line_is_normal(make_run, workstation: Plan) -> None:
    folder = make_run(status="running", plan=workstation)
    with open(folder / "steps.jsonl", "ab") as file:
        file.write(b'{"step": 41, "samp')
    (run,) = facts(folder)
    assert run.summary.num_steps == 40 and run.notes == ("The run has not ended, or its process was killed: shown up to step 40.",)


def test_damaged_lines_are_named(make_run) -> None:
    folder = make_run()
    lines = (folder / "steps.jsonl").read_text().splitlines()
    lines[4] = "garbage"
    lines[9] = json.dumps({**json.loads(lines[9]), "loss": "NaN"})
    (folder / "steps.jsonl").write_text("\n".join(lines) + "\n")
    (run,) = facts(folder)
    assert run.summary.num_steps == 39
    assert "steps.jsonl line 5" in run.notes[0] and "The loss is NaN or infinite in 1 of the steps, first in step 10." in run.notes
    assert "1 steps between the first and the last have no record." in run.notes


@pytest.mark.parametrize(
    "content, message", [(None, "No such file"), ("{}", "this is not a plan"), ('{"version": 99}', "this is not a plan")]
)
def test_a_run_with_an_unreadable_plan_is_shown_with_a_note(make_run, workstation: Plan, content: str | None, message: str) -> None:
    folder = make_run(plan=workstation)
    (folder / "plan.json").unlink()
    if content is not None:
        (folder / "plan.json").write_text(content)
    (run,) = facts(folder)
    assert run.plan is None and message in run.notes[0] and "What was predicted is not shown" in run.notes[0]


def broken(folder: Path, what: str) -> Path:
    if what == "newer":
        header = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps({**header, "format": 99}))
    elif what == "empty":
        (folder / "steps.jsonl").write_text("")
    elif what == "no header":
        (folder / "run.json").unlink()
    elif what == "no steps":
        (folder / "steps.jsonl").unlink()
    elif what == "absent":
        return folder / "nothing"
    elif what == "all runs":
        return folder.parent
    return folder


@pytest.mark.parametrize(
    "what, message",
    [
        ("newer", "the run's format is 99; this meshwright reads up to 1"),
        ("empty", "the run has no step and is finished"),
        ("no steps", "the run has no step and is finished (steps.jsonl: No such file or directory)"),
        ("no header", "not a run folder: it has no run.json"),
        ("absent", "there is no such run"),
        ("all runs", "this is a folder of 1 runs, not a run"),
    ],
)
def test_what_is_no_run_gets_a_clear_message(make_run, what: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        facts(broken(make_run(), what))
    assert error.value.what == message and error.value.where and error.value.fix


def test_steps_without_time_and_runs_given_twice_are_refused(make_run) -> None:
    with pytest.raises(InputError, match="the run's steps take no time"):
        facts(make_run("still", times_s=[0.0] * 20))
    folder = make_run()
    with pytest.raises(InputError, match="the same run is given twice"):
        facts(folder, folder / ".." / folder.name)


def test_a_plan_that_is_not_the_runs_own_is_reported_and_predicts_nothing(make_run, workstation: Plan, record: Plan) -> None:
    folder = make_run(plan=workstation)
    (folder / "plan.json").write_bytes(plan_bytes(record))
    (run,) = facts(folder)
    assert (run.plan, run.model, run.ledger.energy_j, run.ledger.price) == (None, "", None, None)
    assert any("plan.json is not the run's own plan" in note for note in run.notes)


def test_steps_far_outside_the_interval_on_shared_cores_have_a_likely_cause() -> None:
    plan = plan_of(Job("llama-2m", "this-machine", "python-stdlib", profile="none", gpus=1).forecast("dp=1,mbs=4", ignore_memory=True))
    assert busy_note(plan, "measured", 1.4 * plan.high_s) == ""
    text = busy_note(plan, "measured", 4 * plan.high_s)
    assert f"{4 * plan.high_s / plan.step_s:.1f} times as long as predicted" in text and "other programs" in text
    assert busy_note(plan, "simulated", 4 * plan.high_s) == "" == busy_note(None, "measured", 1.0)
