"""One run's folder, followed while it is written."""

from __future__ import annotations

import hashlib
import json
import os
import time

import pytest

from meshwright.record.run import read_run
from meshwright.record.summary import summary_of
from meshwright.record.writer import RunWriter
from meshwright.serve.live import LiveRun

from .conftest import record


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch):
    monkeypatch.setattr("meshwright.serve.live.LOOK_S", 0.0)


def looked(run: LiveRun) -> LiveRun:
    run.refresh()
    return run


def test_it_follows_a_run_that_is_written(new_run):
    writer = new_run("first", 3)
    run = looked(LiveRun(writer.folder))
    assert (len(run.steps), run.status, run.num_events) == (3, "running", 1)
    writer.step(record(4))
    writer.event("evaluation", 4, loss=2.5, seconds=7.0)
    looked(run)
    assert (len(run.steps), run.last_evaluation, run.busy_s) == (4, 2.5, 4 + 7.0)
    writer.finish("finished")
    assert looked(run).status == "finished"


def test_a_half_written_line_is_normal(new_run):
    writer = new_run("first", 2)
    with (writer.folder / "steps.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "samp')
    run = looked(LiveRun(writer.folder))
    assert (len(run.steps), run.num_damaged) == (2, 0)


def test_damage_is_named_as_read_run_names_it(new_run):
    writer = new_run("first", 2)
    with (writer.folder / "steps.jsonl").open("ab") as file:
        file.write(b'garbage\n{"step": 2}\n\n')
    writer.step(record(3))
    with (writer.folder / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": 3}\n')
    run = looked(LiveRun(writer.folder))
    assert tuple(run.damage) == read_run(writer.folder).damage
    assert (len(run.steps), run.num_damaged) == (3, 3)


def test_a_resumed_run_begins_anew(new_run, runs):
    writer = new_run("first", 10)
    run = looked(LiveRun(writer.folder))
    life = run.life
    writer.close()
    with RunWriter.resume(writer.folder, 6) as again:
        again.step(record(7, loss=99.0))
        looked(run)
    assert (len(run.steps), run.steps.last("loss")) == (7, 99.0)
    assert run.life > life


@pytest.mark.parametrize(
    "content, why",
    [
        (b'{"format": 1, "na', "cannot read the run's header"),
        (b"[]", "cannot read the run's header"),
        (b'{"format": 2}', "this meshwright reads up to 1"),
        (b'{"format": 1}', "the run's header is damaged"),
        (b"\xff\xfe", "cannot read the run's header"),
        (b"", "cannot read the run's header"),
    ],
)
def test_a_damaged_header_is_reported(new_run, content, why):
    writer = new_run("first", 2)
    (writer.folder / "run.json").write_bytes(content)
    run = looked(LiveRun(writer.folder))
    assert run.status == "damaged"
    assert why in run.problem.what


def test_a_header_that_is_gone_or_mended_is_noticed(new_run):
    writer = new_run("first", 2)
    good = (writer.folder / "run.json").read_bytes()
    (writer.folder / "run.json").unlink()
    run = looked(LiveRun(writer.folder))
    assert "no run.json" in run.problem.what
    (writer.folder / "run.json").write_bytes(good)
    assert (looked(run).status, run.problem, len(run.steps)) == ("running", None, 2)


def test_a_file_that_is_a_link_is_not_followed(new_run, tmp_path):
    (tmp_path / "secret").write_text("secret\n")
    for name in ("run.json", "steps.jsonl", "plan.json", "events.jsonl"):
        writer = new_run(f"linked-{name}", 1)
        (writer.folder / name).unlink(missing_ok=True)
        (writer.folder / name).symlink_to(tmp_path / "secret")
        run = looked(LiveRun(writer.folder))
        assert run.status == "damaged"
        assert "secret" not in run.problem.what


def test_a_pipe_in_place_of_the_header_does_not_hang(new_run):
    writer = new_run("first", 1)
    (writer.folder / "run.json").unlink()
    os.mkfifo(writer.folder / "run.json")
    assert "not a plain file" in looked(LiveRun(writer.folder)).problem.what


def test_a_killed_run_is_quiet_after_a_while(new_run):
    writer = new_run("first", 5)
    run = looked(LiveRun(writer.folder))
    assert run.status == "running"
    for name in ("run.json", "steps.jsonl", "events.jsonl"):
        os.utime(writer.folder / name, (0, time.time() - 3600))
    assert run.status == "quiet"
    writer.finish("stopped")
    for name in ("run.json", "steps.jsonl", "events.jsonl"):
        os.utime(writer.folder / name, (0, time.time() - 3600))
    assert looked(run).status == "stopped"


def test_steps_that_follow_an_evaluation_are_not_steady(new_run):
    writer = new_run("first")
    writer.step(record(1, step_s=50.0))
    writer.steps(record(step) for step in range(2, 6))
    writer.event("evaluation", 5, loss=1.0, seconds=3.0)
    writer.step(record(6, step_s=9.0))
    run = looked(LiveRun(writer.folder))
    assert run.recent_step_s == 1.0
    assert run.num_steady == summary_of(read_run(writer.folder)).num_steady_steps == 4
    assert run.recent_parts_s == pytest.approx({"compute": 0.7, "exposed_dp": 0.2, "bubble": 0.1})


def test_slow_ranks_come_and_go(new_run):
    writer = new_run("first", 3)
    writer.event("slow_rank", 1, rank=7, message="rank 7 is slow")
    writer.event("slow_rank", 2, rank=9, message="rank 9 is slow")
    writer.event("recovered_rank", 3, rank=7, message="rank 7 is not")
    assert list(looked(LiveRun(writer.folder)).slow_ranks) == [9]


def test_slow_links_come_and_go(new_run):
    writer = new_run("first", 3)
    writer.event("slow_link", 1, axis="pp", groups=[[0, 1]], message="the link between hosts a and b is slow")
    writer.event("slow_link", 2, axis="dp", groups=[[0, 2], [1, 3]])
    writer.event("recovered_link", 3, axis="pp", groups=[[0, 1]])
    assert looked(LiveRun(writer.folder)).num_slow_links == 1


def test_times_of_ranks_are_read_where_a_run_leaves_them(new_run):
    writer = new_run("first", 3)
    run = looked(LiveRun(writer.folder))
    assert run.rank_times is None
    (writer.folder / "ranks.json").write_text(json.dumps({"step": 3, "num_steps": 2, "busy_s": [0.5, 0.7]}))
    assert looked(run).rank_times == (3, 2, [0.5, 0.7])
    (writer.folder / "ranks.json").write_text('{"busy_s": "NaN"}')
    assert looked(run).rank_times is None


def test_a_damaged_plan_leaves_the_steps_to_see(new_run):
    writer = new_run("first", 3, plan=b'{"version": 99}')
    run = looked(LiveRun(writer.folder))
    assert (run.plan, run.status, len(run.steps)) == (None, "running", 3)
    assert "not a plan" in run.plan_problem


def test_a_plan_that_is_not_the_runs_own_is_reported_and_not_used(new_run, plan_bytes):
    writer = new_run("first", 3, plan=plan_bytes)
    run = looked(LiveRun(writer.folder))
    assert run.plan is not None and not run.plan_problem
    (writer.folder / "plan.json").write_bytes(plan_bytes + b"\n")
    assert looked(run).plan is None
    assert run.plan_problem.startswith("plan.json is not the run's own plan")
    writer.update(plan_sha256=hashlib.sha256(plan_bytes + b"\n").hexdigest())  # as a resumed run does, after it has written the plan
    assert looked(run).plan is not None and not run.plan_problem
