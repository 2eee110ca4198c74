"""`meshwright train` as a user runs it, and what becomes of it when ranks die, hang, slow down or meet numbers that are none."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import injected
import numpy as np
import pytest
from small_run import EVALUATION, MODEL, Command, Small, events_of, free_port, last_step, session, start, steps_of, tensors_of, train, until

from meshwright.layout import parse_layout
from meshwright.plan.plan import read_plan
from meshwright.record.flight import read_traces
from meshwright.record.profile import profile_of
from meshwright.record.request import ask_for_replicas
from meshwright.record.run import read_run
from meshwright.say.vocabulary import problems
from meshwright.train.health.garbage import SETTLED
from meshwright.train.job import TrainingJob
from meshwright.train.loop import Progress
from meshwright.train.parallel.digests import NUM_PARTS
from meshwright.train.record.mlperf import check_log
from meshwright.train.session import owes_evaluation

NUM_STEPS = 8
SLOW_S = 0.15  # a step, where a test must be quicker than the run


def name_of(run: Path, step: int) -> Path:
    return max((run / "checkpoints").glob(f"step-{step:08}*"))  # saved again: step-00000008.1


def same_tensors(one: Path, other: Path) -> bool:
    a, b = tensors_of(one), tensors_of(other)
    return a.keys() == b.keys() and all(np.array_equal(a[name].view(np.int32), b[name].view(np.int32)) for name in a)


@pytest.fixture(scope="module")
def plan(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two replicas, an evaluation every two steps, no target."""
    return small.plan_file(tmp_path_factory.mktemp("plan") / "plan.json", "dp=2", evaluation=EVALUATION)


@pytest.fixture(scope="module")
def unbroken(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("unbroken")
    command = train(folder, plan, "--steps", str(NUM_STEPS), "--name", "a", "--checkpoint-every", "3")
    assert command.wait() == 0, command.err
    assert command.err == ""
    return folder / "runs" / "a"


@pytest.fixture
def slow_run(plan: Path, tmp_path: Path) -> Callable[..., Command]:
    """Starts the same run with steps so slow that a test can step in."""

    def start(*arguments: str, before: Callable[..., None] = injected.slow_steps, with_: tuple[Any, ...] = (SLOW_S,)) -> Command:
        given = ("--steps", str(NUM_STEPS), "--name", "a", "--checkpoint-every", "3", *arguments)
        return train(tmp_path, plan, *given, before=before, with_=with_)

    return start


def resume(folder: Path, *arguments: str) -> Command:
    command = train(folder, "--name", "a", "--resume", "--steps", str(NUM_STEPS), *arguments)
    assert command.wait() == 0, command.err
    return command


def test_what_a_run_leaves(unbroken: Path) -> None:
    run = read_run(unbroken)
    assert run.header.status == "finished"
    assert [record.step for record in run.records] == list(range(1, NUM_STEPS + 1))
    assert all(abs(sum(record.parts_s.values()) / record.step_s - 1) < 1e-6 for record in run.records)
    assert run.records[-1].loss < run.records[0].loss
    assert [event.step for event in run.events if event.kind == "evaluation"] == [2, 4, 6, 8]
    assert {event.detail["num_tokens"] for event in run.events if event.kind == "evaluation"} == {6 * 32}  # two replicas took eight
    assert sorted(event.detail["saved_step"] for event in run.events if event.kind == "checkpoint") == [3, 6, 8]
    config = json.loads((unbroken / "tokenizer_config.json").read_text())
    assert config["eos_token"] == "<|endoftext|>"
    assert config["model_max_length"] == 32
    assert {path.name for path in unbroken.iterdir()} >= {"plan.json", "run.json", "steps.jsonl", "mlperf.log", "tokenizer.json"}


def test_a_killed_rank_then_resume(slow_run: Callable[..., Command], unbroken: Path, tmp_path: Path) -> None:
    command, run = slow_run(), tmp_path / "runs" / "a"
    ranks = command.ranks(2)
    command.step(run, 4)
    killed_s = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    assert command.wait() == 1
    assert time.monotonic() - killed_s < 60
    message, calls = command.err.splitlines()
    assert message == "meshwright: rank 1 was killed by SIGKILL: often because the machine is out of memory"
    assert re.fullmatch(r"  calls: \S+ \d+ of the .*group of ranks 0, 1.*: rank 0 had entered it, rank 1 left no trace", calls)
    wanted = {"reason": "signal", "rank": 1, "exit_code": -9, "message": message[12:], "flight": calls.removeprefix("  calls: ")}
    assert end_of(run, flight=True) == ("failed", wanted)
    assert [trace.rank for trace in read_traces(run)] == [0]
    again = resume(tmp_path)
    assert not read_traces(run)
    assert "\ncontinuing from " in again.out
    assert "the newest complete checkpoint\n" in again.out
    assert [step["step"] for step in steps_of(run)] == list(range(1, NUM_STEPS + 1))
    assert [step["loss"] for step in steps_of(run)] == [step["loss"] for step in steps_of(unbroken)]
    assert same_tensors(name_of(run, NUM_STEPS), name_of(unbroken, NUM_STEPS))


def end_of(run: Path, *, flight: bool = False) -> tuple[str, dict[str, Any] | None]:
    """A run's status, and what its last event says if that is a failure; the step must be the last on record.

    What a rank was in when another one failed depends on the moment, so only tests that ask for it see it.
    """
    event = events_of(run)[-1]
    result = {name: value for name, value in event.items() if name not in ("time_s", "kind", "step", *(() if flight else ("flight",)))}
    assert event["kind"] != "failed" or event["step"] == last_step(run)
    return read_run(run).header.status, result if event["kind"] == "failed" else None


def test_the_death_of_the_rank_that_records_is_recorded(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command, run = slow_run(), tmp_path / "runs" / "a"
    ranks = command.ranks(2)
    command.step(run, 2)
    os.kill(ranks[0], signal.SIGKILL)
    assert command.wait() == 1
    message = "rank 0 was killed by SIGKILL: often because the machine is out of memory"
    assert end_of(run) == ("failed", {"reason": "signal", "rank": 0, "exit_code": -9, "message": message})


@pytest.mark.parametrize("code", [3, 0])
def test_a_rank_that_exits_in_mid_run_is_named(plan: Path, tmp_path: Path, code: int) -> None:
    command = train(tmp_path, plan, "--steps", "5", "--name", "a", before=injected.exits, with_=(1, 2, code))
    assert command.wait() == 1
    message = f"rank 1 ended with exit code {code} before the end of the run, without a message"
    assert command.err.splitlines()[0] == f"meshwright: {message}"
    assert end_of(tmp_path / "runs" / "a") == ("failed", {"reason": "exit", "rank": 1, "exit_code": code, "message": message})


def test_a_terminal_that_closes_saves_and_stops(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command, run = slow_run(with_=(0.6,)), tmp_path / "runs" / "a"
    command.step(run, 1)
    os.killpg(command.pid, signal.SIGHUP)
    assert command.wait() == 0, command.err
    assert read_run(run).header.status == "stopped"
    assert name_of(run, len(steps_of(run))).is_dir()


def test_a_kill_loses_no_step_that_was_done(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command, run = slow_run(with_=(0.5,)), tmp_path / "runs" / "a"
    until(lambda: list((run / "checkpoints").glob("step-00000003")), command=command)  # step 4 runs, and step 3 waits for its times
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    resume(tmp_path, "--steps", "4")
    assert [step["step"] for step in steps_of(run)] == [1, 2, 3, 4]
    assert all(step["loss"] > 0 and step["step_s"] > 0 for step in steps_of(run))


@pytest.mark.parametrize(
    ("layout", "pace"), [("dp=2,zero=0", injected.slow_steps), ("dp=2,tp=2,zero=1", injected.slow_steps), ("dp=2,zero=0", injected.resting)]
)
def test_a_run_that_keeps_going_does_without_a_lost_replica(
    small: Small, tmp_path: Path, layout: str, pace: Callable[[float], None]
) -> None:
    run, more = tmp_path / "runs" / "a", ("--checkpoint-every", "30", "--keep-going", "--steps", "24")
    plan = small.plan_file(tmp_path / "plan.json", layout)
    command = train(tmp_path, plan, "--name", "a", "--stall-timeout", "2", *more, before=pace, with_=(SLOW_S,))
    for number, (at_least, sent) in enumerate(((4, signal.SIGKILL), (10, signal.SIGSTOP)), start=1):
        command.step(run, at_least)
        os.kill(sorted(command.others())[1 if number == 1 else -1], sent)  # the first process hosts the store, the last one joined last
        until(lambda number=number: len(events_of(run, "incident")) == number, lambda: command.err, command)
    assert command.wait() == 0, command.err
    first, second = events_of(run, "incident")
    assert (first["reason"], first["rank"], second["reason"]) == ("signal", 0, "hang")
    for event in (first, second):
        assert event["action"] == "went on with 1 of 2 replicas" and event["num_lost_steps"] <= 1
        assert event["down_s"] > 0.0 and event["message"] in command.out
    assert read_run(run).header.status == "finished"
    assert [step["samples"] for step in steps_of(run)] == [8 * step for step in range(1, 25)]
    assert [event["reason"] for event in events_of(run, "membership")][:3] == ["start", "lost", "joined"]
    clean = train(tmp_path / "clean", plan, "--name", "a", "--memberships", run, *more)
    assert clean.wait() == 0, clean.err
    assert same_tensors(name_of(run, 24), name_of(tmp_path / "clean" / "runs" / "a", 24))


@pytest.mark.parametrize("layout", ["dp=2,zero=1", "tp=2"])
def test_a_run_whose_ranks_are_all_stopped_is_started_again(small: Small, tmp_path: Path, layout: str) -> None:
    run, limit_s = tmp_path / "runs" / "a", 2.0
    more = ("--checkpoint-every", "3", "--keep-going", "--steps", "16", "--stall-timeout", str(limit_s))
    plan = small.plan_file(tmp_path / "plan.json", layout)
    command = train(tmp_path, plan, "--name", "a", *more, before=injected.slow_steps, with_=(SLOW_S,))
    command.step(run, 5)
    for pid in sorted(command.others())[1:]:  # the first process hosts the store
        os.kill(pid, signal.SIGSTOP)
    assert command.wait() == 0, command.err
    *_, last = events_of(run, "incident")
    assert last["reason"] == "hang" and last["action"].startswith("restarted from step ")
    assert re.match(r"rank \d was stopped by a signal, and not continued for \d+\.\d s", last["message"])
    assert limit_s <= last["noticed_after_s"] < limit_s + 10.0  # the machine may be busy
    assert [step["samples"] for step in steps_of(run)] == [8 * step for step in range(1, 17)]
    assert read_run(run).header.status == "finished"


def gloo_groups(pid: int) -> int:
    """How many groups of gloo a process has: each has a thread."""
    return sum((task / "comm").read_text().strip() == "gloo_tcp_loop" for task in (Path("/proc") / str(pid) / "task").iterdir())


def test_replicas_join_and_leave_a_run_that_trains(small: Small, tmp_path: Path) -> None:
    run, more = tmp_path / "runs" / "a", ("--keep-going", "--steps", "30", "--name", "a")
    plan = small.plan_file(tmp_path / "plan.json", "dp=2,zero=2")
    command = train(tmp_path, plan, *more, before=injected.slow_steps, with_=(SLOW_S,))
    num_groups = []
    for dp in (3, 1):
        command.step(run, last_step(run) + SETTLED + 1)
        num_groups.append(gloo_groups(sorted(command.others())[1]))  # of rank 0: the first process hosts the store
        ask_for_replicas(run, dp)
        until(lambda dp=dp: events_of(run, "membership")[-1]["dp"] == dp, lambda: command.err, command)
    command.step(run, last_step(run) + SETTLED + 1)
    num_groups.append(gloo_groups(sorted(command.others())[1]))
    assert command.wait() == 0, command.err
    assert 0 < max(num_groups) == num_groups[0]  # nothing is left of the generations before
    assert [event["micro_batches"] for event in events_of(run, "membership")] == [[2, 2], [2, 1, 1], [4]]
    whole = train(tmp_path / "whole", plan, "--steps", "30", "--name", "a")
    assert whole.wait() == 0, whole.err
    losses = [step["loss"] for step in steps_of(run)]
    assert losses == pytest.approx([step["loss"] for step in steps_of(tmp_path / "whole" / "runs" / "a")], rel=1e-5)


@pytest.fixture
def on_two_nodes(small: Small, tmp_path: Path) -> Callable[..., Command]:
    """Starts the supervisor of a node, of two: `tag` tells several starts of one node apart."""
    secret, port = tmp_path / "secret", free_port()
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    plan = small.plan_file(tmp_path / "plan.json", "dp=2,zero=1")
    meeting = ("--nodes", "2", "--meet", f"127.0.0.2:{port}", "--secret", secret, "--rendezvous-timeout", "120")

    def started(node: int, *more: str, tag: str = "") -> Command:
        given = ["train", plan, "--name", "a", "--runs", tmp_path / "runs", "--keep-going", "--node", str(node), *meeting, *more]
        threads = {"OMP_NUM_THREADS": "1"}  # as in the run on one machine that it is compared with
        return start(tmp_path / f"node{node}{tag}", given, before=injected.slow_steps, with_=(SLOW_S,), environment=threads)

    return started


def test_a_run_on_two_nodes_does_without_one_of_them(on_two_nodes: Callable[..., Command], tmp_path: Path) -> None:
    run, more = tmp_path / "runs" / "a", ("--checkpoint-every", "30", "--steps", "16")
    leader, other = on_two_nodes(0, *more), on_two_nodes(1, *more)
    leader.step(run, 3)
    for pid in session(other.pid):  # the supervisor and its rank: the power of the node is gone
        os.kill(pid, signal.SIGKILL)
    until(lambda: events_of(run, "incident"), lambda: leader.err, leader)
    back = on_two_nodes(1, *more, tag="again")
    assert leader.wait() == 0, leader.err
    assert back.wait() == 0, back.err
    (incident,) = events_of(run, "incident")
    assert (incident["reason"], incident["action"]) == ("node", "went on with 1 of 2 replicas")
    assert incident["num_lost_steps"] <= 1 and incident["message"].startswith("node 1 (127.0.0.")
    assert [event["reason"] for event in events_of(run, "membership")][:3] == ["start", "lost", "joined"]
    assert [step["samples"] for step in steps_of(run)] == [8 * step for step in range(1, 17)]
    clean = train(tmp_path / "clean", tmp_path / "plan.json", "--name", "a", "--keep-going", "--memberships", run, *more)
    assert clean.wait() == 0, clean.err
    assert same_tensors(name_of(run, 16), name_of(tmp_path / "clean" / "runs" / "a", 16))


def test_a_run_goes_on_from_a_checkpoint_when_its_leading_node_is_started_again(
    on_two_nodes: Callable[..., Command], tmp_path: Path
) -> None:
    run, more = tmp_path / "runs" / "a", ("--checkpoint-every", "2", "--steps", "10", "--resume-if-exists")
    leader, other = on_two_nodes(0, *more), on_two_nodes(1, *more)
    leader.step(run, 5)
    for pid in session(leader.pid):
        os.kill(pid, signal.SIGKILL)
    again = on_two_nodes(0, *more, tag="again")
    assert again.wait() == 0, again.err
    assert other.wait() == 0, other.err
    assert "lost the leading supervisor" in other.err
    assert re.search(r"continuing from step-0000000[24]", again.out)
    assert [step["samples"] for step in steps_of(run)] == [8 * step for step in range(1, 11)]


def test_a_slow_replica_gets_fewer_micro_batches_while_others_come_and_go(small: Small, tmp_path: Path) -> None:
    """Eight micro-batches do not divide among three replicas. A list of memberships has the deals too, so it gives the same bits."""
    run, more = tmp_path / "runs" / "a", ("--keep-going", "--steps", "140", "--checkpoint-every", "140", "--name", "a")
    plan = small.plan_file(tmp_path / "plan.json", "dp=4,mbs=1")
    command = train(tmp_path, plan, *more, "--rebalance", before=injected.drawn_times, with_=(0.2, 0.02, {1: 2.0}))
    command.step(run, 49)
    until(lambda: events_of(run, "rebalanced"), lambda: command.err, command)
    ask_for_replicas(run, 3)
    until(lambda: len(events_of(run, "rebalanced")) == 2, lambda: command.err, command)
    os.kill(sorted(command.others())[-1], signal.SIGKILL)
    assert command.wait() == 0, command.err
    for event, step, dp in zip(events_of(run, "rebalanced"), (50, 100), (4, 3), strict=True):
        assert (event["step"], event["ranks"], len(event["deal"])) == (step, [1], dp)
        assert sum(event["deal"]) == 8 and event["deal"][1] < max(event["deal"])
    assert [event["reason"] for event in events_of(run, "membership")][:3] == ["start", "scaled", "lost"]
    assert [step["samples"] for step in steps_of(run)] == [8 * step for step in range(1, 141)]
    clean = train(tmp_path / "clean", plan, *more, "--memberships", run)
    assert clean.wait() == 0, clean.err
    assert same_tensors(name_of(run, 140), name_of(tmp_path / "clean" / "runs" / "a", 140))


def test_a_fault_that_comes_again_ends_a_run_that_keeps_going(small: Small, tmp_path: Path) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "tp=2")  # one replica: all ranks are started again
    arguments = ("--steps", "8", "--name", "a", "--checkpoint-every", "3", "--keep-going")
    command = train(tmp_path, plan, *arguments, before=injected.broken, with_=(1, 5))
    assert command.wait() == 1
    # The ranks of a lost replica are ended at once, so its last step may be in no record yet.
    assert re.search(r"not started again: the same happened at step [45] before \(incident 1\)", command.err)
    first, second = events_of(tmp_path / "runs" / "a", "incident")
    assert first["action"].startswith("restarted from step ")
    assert second["action"] == "gave up" and second["tried"].count("rank 1 failed: OutOfMemoryError") == 2
    assert end_of(tmp_path / "runs" / "a")[0] == "failed"


def test_a_killed_parent_takes_its_ranks_along(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command = slow_run()
    command.ranks(2)
    command.step(tmp_path / "runs" / "a", 1)
    os.kill(command.pid, signal.SIGKILL)
    assert command.wait() == -signal.SIGKILL  # and it looks for what is left


def test_sigterm_saves_and_another_layout_goes_on(slow_run: Callable[..., Command], unbroken: Path, tmp_path: Path) -> None:
    command, run = slow_run("--grace", "30"), tmp_path / "runs" / "a"
    command.step(run, 2)
    asked_s = time.monotonic()
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 0, command.err
    assert time.monotonic() - asked_s < 30
    steps = len(steps_of(run))
    assert command.err == "meshwright: stopped and saved; continue with: meshwright train --runs runs --name a --resume\n"
    assert read_run(run).header.status == "stopped"
    assert name_of(run, steps).is_dir()
    resume(tmp_path, "--layout", "tp=2,dp=1")
    losses = [step["loss"] for step in steps_of(run)]
    assert losses == pytest.approx([step["loss"] for step in steps_of(unbroken)], rel=1e-5)
    assert [event["layout"].split(",")[0] for event in events_of(run, "resumed")] == ["tp=2"]
    assert (run / f"plan-until-step-{steps}.json").is_file()


def test_an_evaluation_that_a_stop_left_out_is_made_up_for(unbroken: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "a"
    shutil.copytree(unbroken, run)
    events = [line for line in (run / "events.jsonl").read_text().splitlines() if json.loads(line)["kind"] != "evaluation"]
    (run / "events.jsonl").write_text("".join(f"{line}\n" for line in events))
    job = TrainingJob(plan=read_plan(run / "plan.json"), runs=run.parent, name="a", corpus=Path("."), num_steps=NUM_STEPS)
    assert [step for step in range(NUM_STEPS + 1) if owes_evaluation(job, Progress(step=step))] == [2, 4, 6, 8]
    assert not any(owes_evaluation(replace(job, runs=unbroken.parent, name=unbroken.name), Progress(step=step)) for step in range(9))


def test_sigterm_without_saving_does_not_promise_a_checkpoint(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command = slow_run("--no-save")
    command.step(tmp_path / "runs" / "a", 2)
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 0
    assert command.err == "meshwright: stopped; nothing was saved, as --no-save asks, so the run cannot be continued\n"


def test_a_rank_that_cannot_save_stops_nobody(plan: Path, tmp_path: Path) -> None:
    given = ("--steps", "8", "--name", "a", "--checkpoint-every", "3")
    command = train(tmp_path, plan, *given, before=injected.failing_mkdir, with_=(1, 3))
    assert command.wait(60) == 0, command.err
    failed = events_of(tmp_path / "runs" / "a", "checkpoint_failed")
    assert [(event["saved_step"], event["message"]) for event in failed] == [
        (3, "rank 1 could not save: cannot begin the checkpoint of step 3: Input/output error")
    ]
    assert [event["saved_step"] for event in events_of(tmp_path / "runs" / "a", "checkpoint")] == [6, 8]


def test_a_rank_that_cannot_save_the_end_is_one_message(plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "3", "--name", "a", before=injected.failing_mkdir, with_=(1, 3))
    assert command.wait(60) == 1
    assert command.err.startswith("meshwright: the last checkpoint, of step 3, was not saved: rank 1 could not save: cannot begin")
    assert command.err.count("meshwright:") == 1
    assert [event["kind"] for event in events_of(tmp_path / "runs" / "a")][-2:] == ["checkpoint_failed", "failed"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_refused_run_leaves_no_folder_in_the_way_of_the_next(rank: int, plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "1", "--name", "a", before=injected.refused, with_=(rank,))
    assert command.wait() == 2
    assert "no use for this job" in command.err
    assert not (tmp_path / "runs" / "a").exists()


def test_a_run_that_goes_on_is_not_resumed_a_second_time(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    first, run = slow_run("--steps", "400"), tmp_path / "runs" / "a"
    first.step(run, 4)
    second = train(tmp_path / "other", "--runs", tmp_path / "runs", "--name", "a", "--resume")
    assert second.wait() == 2
    assert re.fullmatch(
        rf"meshwright: this run is being written by process \d+ on .*\n  where: {run}\n  fix:   wait until it has ended.*\n", second.err
    )
    os.kill(first.pid, signal.SIGKILL)  # what is left of it is in nobody's way
    assert first.wait() == -signal.SIGKILL
    steps = last_step(run)
    assert resume(tmp_path, "--steps", str(steps + 1)).wait() == 0


def test_two_resumes_at_the_same_moment(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    assert slow_run("--steps", "3").wait() == 0
    given = ("--runs", tmp_path / "runs", "--name", "a", "--resume", "--steps", "6", "--checkpoint-every", "1")
    both = [train(tmp_path / name, *given, before=injected.slow_steps, with_=(0.5,)) for name in ("one", "two")]
    assert sorted(command.wait() for command in both) == [0, 2]
    assert [step["step"] for step in steps_of(tmp_path / "runs" / "a")] == [1, 2, 3, 4, 5, 6]


def test_a_run_goes_on_as_it_was_started(small: Small, tmp_path: Path) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "dp=2", training={"corpus": "nowhere"})
    corpus = os.path.relpath(small.corpus, tmp_path)  # from another folder this leads nowhere
    given = ("--corpus", corpus, "--seed", "5", "--steps", "30", "--keep", "2", "--name", "first run")
    command = train(tmp_path, plan, *given, before=injected.slow_steps, with_=(SLOW_S,))
    run = tmp_path / "runs" / "first run"
    command.step(run, 2)
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait() == 0
    printed = command.err.strip().rpartition("continue with: meshwright ")[2]
    assert printed == "train --runs runs --name 'first run' --resume"
    steps = len(steps_of(run))
    again = start(tmp_path, [*shlex.split(printed), "--steps", str(steps + 1)])
    assert again.wait() == 0, again.err
    assert read_run(run).header.arguments["steps"] == 30
    elsewhere = train(tmp_path / "elsewhere", "--runs", tmp_path / "runs", "--resume", "--steps", str(steps + 2))
    assert elsewhere.wait() == 0, elsewhere.err
    assert elsewhere.err.startswith("meshwright: continuing the newest run, ")
    assert [step["step"] for step in steps_of(run)] == list(range(1, steps + 3))
    assert len(list((run / "checkpoints").glob("step-*"))) == 2


def test_a_plan_with_more_tensor_ranks_than_key_value_heads_trains(small: Small, tmp_path: Path) -> None:
    losses = {}
    for text in ("dp=1", "tp=4"):
        plan = small.plan_file(tmp_path / f"{text}.json", text, model=replace(MODEL, num_kv_heads=2))
        command = train(tmp_path, plan, "--steps", "3", "--name", text)
        assert command.wait() == 0, command.err
        losses[text] = [record.loss for record in read_run(tmp_path / "runs" / text).records]
    assert losses["tp=4"] == pytest.approx(losses["dp=1"], rel=1e-5)


def test_a_plan_written_by_hand_is_refused_in_the_planners_words(small: Small, tmp_path: Path) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "tp=2")
    written = json.loads(plan.read_text())
    written["layout"]["micro_batch"] = 3
    plan.write_text(json.dumps(written))
    command = train(tmp_path, plan, "--steps", "1", "--name", "a")
    assert command.wait() == 2
    assert "dp=1 x mbs=3 = 3 does not divide the global batch 8" in command.err


def test_a_job_that_is_restarted_starts_or_goes_on(plan: Path, tmp_path: Path) -> None:
    given = (plan, "--name", "a", "--resume-if-exists", "--steps")
    run = tmp_path / "runs" / "a"
    killed = train(tmp_path, *given, "40", before=injected.slow_steps, with_=(SLOW_S,))
    killed.step(run, 2)
    os.kill(killed.pid, signal.SIGKILL)  # before its first checkpoint
    killed.wait()
    over = train(tmp_path, *given, "2")
    assert over.wait() == 0, over.err
    assert "the run has no checkpoint yet: it starts over" in over.out
    on = train(tmp_path, *given, "4")
    assert on.wait() == 0, on.err
    assert "continuing from step-00000002" in on.out
    assert [step["step"] for step in steps_of(run)] == [1, 2, 3, 4]


def test_a_run_that_has_no_save_interval_saves_by_the_clock(plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "400", "--name", "a", before=injected.hasty_clock, with_=(0.3, SLOW_S))
    run = tmp_path / "runs" / "a"
    until(lambda: (run / "events.jsonl").exists() and events_of(run, "checkpoint"), command=command)
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    again = train(tmp_path, "--resume", "--steps", str(last_step(run)))
    assert again.wait() == 0, again.err
    assert "saved every few minutes and at the end" in again.out


def test_control_c_saves_and_says_how_to_go_on(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command, run = slow_run(), tmp_path / "runs" / "a"
    command.step(run, 1)
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does: the whole foreground group
    assert command.wait() == 130
    assert "continue with: meshwright train --runs runs --name a --resume\n" in command.err
    assert name_of(run, len(steps_of(run))).is_dir()


def test_two_control_cs_end_it_at_once(slow_run: Callable[..., Command], tmp_path: Path) -> None:
    command = slow_run(with_=(30.0,))
    command.ranks(2)
    until(lambda: (tmp_path / "runs" / "a" / "run.json").exists())
    os.killpg(command.pid, signal.SIGINT)
    time.sleep(0.2)
    os.killpg(command.pid, signal.SIGINT)
    assert command.wait(20.0) == 130
    message = "a second Ctrl-C ended the ranks at once, without a checkpoint"
    assert end_of(tmp_path / "runs" / "a") == ("failed", {"reason": "interrupt", "message": message})


def test_damaged_checkpoints_are_skipped_and_named(slow_run: Callable[..., Command], unbroken: Path, tmp_path: Path) -> None:
    assert slow_run(with_=(0.0,)).wait() == 0
    run = tmp_path / "runs" / "a"
    shard = next(name_of(run, 8).glob("shard-00001*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)
    next(name_of(run, 6).glob("shard-00000*")).unlink()
    again = resume(tmp_path)
    first = next(line for line in again.out.splitlines() if line.startswith("continuing"))
    newest, *skipped = first.split("; skipped ")
    assert newest == f"continuing from {name_of(run, 3).name}, the newest complete checkpoint"
    assert "shard-00001" in skipped[0]  # a flipped bit
    assert "shard-00000" in skipped[1]  # gone
    assert [step["step"] for step in steps_of(run)] == list(range(1, NUM_STEPS + 1))
    assert same_tensors(name_of(run, NUM_STEPS), name_of(unbroken, NUM_STEPS))


def test_a_run_does_not_go_on_to_a_step_it_has_passed(unbroken: Path) -> None:
    before = (unbroken / "run.json").read_bytes(), (unbroken / "mlperf.log").read_bytes()
    command = train(unbroken.parents[1], "--name", "a", "--resume", "--steps", "3")
    assert command.wait() == 2
    assert command.err.startswith(
        f"meshwright: the run has passed step 3: its newest checkpoint is of step {NUM_STEPS}\n  where: --steps 3\n"
    )
    assert ((unbroken / "run.json").read_bytes(), (unbroken / "mlperf.log").read_bytes()) == before


def test_what_must_be_the_same_to_go_on(small: Small, plan: Path, tmp_path: Path) -> None:
    other = small.plan_file(tmp_path / "other.json", "dp=2", evaluation=EVALUATION, training={"learning_rate": 1e-3})
    assert train(tmp_path, plan, "--steps", "1", "--name", "a").wait() == 0
    go_on = ("--name", "a", "--resume", "--steps", "2")
    changes = (
        (("--seed", "1"), None, "plan", ": the seed is 0 in the checkpoint and 1 now (--seed)"),
        ((), injected.other_code, "code", " in code"),
        ((str(other),), None, "plan", ": workload.training.learning_rate is 0.003 in the run's plan and 0.001 now"),
    )
    for arguments, before, what, message in changes:
        command = train(tmp_path, *arguments, *go_on, before=before)
        assert command.wait() == 2
        assert command.err.startswith(f"meshwright: this run differs from its checkpoint{message}\n  where: {what}: ")
        assert command.err.rstrip().endswith(f"--allow-changed {what}")
    command = train(tmp_path, other, *go_on, "--allow-changed", "plan")
    assert command.wait() == 0, command.err
    header = read_run(tmp_path / "runs" / "a").header
    assert (header.num_steps, header.last_step) == (2, 2)  # of the life that went on


@pytest.mark.parametrize("number", [errno.ENOSPC, pytest.param(errno.EROFS, marks=pytest.mark.long)])
def test_a_disk_that_fails(plan: Path, tmp_path: Path, number: int) -> None:
    arguments = ("--steps", "5", "--name", "a", "--checkpoint-every", "2")
    command = train(tmp_path, plan, *arguments, before=injected.failing_disk, with_=(number, "disk", 4))
    assert command.wait() == 1
    run = tmp_path / "runs" / "a"
    why = os.strerror(number)
    assert command.err.startswith("meshwright: the last checkpoint, of step 5, was not saved: ") and why in command.err
    assert why in events_of(run, "checkpoint_failed")[0]["message"]
    assert "checkpoint of step 4 failed" in command.out and "the last good one is kept" in command.out
    assert len(steps_of(run)) == 5
    assert read_run(run).header.status == "failed"
    assert all(np.isfinite(tensor).all() for tensor in tensors_of(name_of(run, 2)).values())


def test_records_that_cannot_be_written_end_the_run(plan: Path, tmp_path: Path) -> None:
    arguments = ("--steps", "5", "--name", "a", "--checkpoint-every", "1")
    command = train(tmp_path, plan, *arguments, before=injected.full_records, with_=(3,))
    assert command.wait() == 1
    assert command.err.startswith("meshwright: cannot record the run: No space left on device\n  where: runs/a/steps.jsonl")
    assert all(np.isfinite(tensor).all() for tensor in tensors_of(name_of(tmp_path / "runs" / "a", 2)).values())


def test_a_number_that_is_none_stops_before_the_update(plan: Path, tmp_path: Path) -> None:
    arguments = ("--steps", "5", "--name", "a", "--checkpoint-every", "1", "--skip-batches", "0")
    command = train(tmp_path, plan, *arguments, before=injected.no_number, with_=(1, 3))
    assert command.wait() == 1
    run = tmp_path / "runs" / "a"
    message = "first on rank 1 (tp 0, cp 0, pp 0, dp 1) in layer 0 in the forward of micro-batch 0 (samples 26, 27)"
    assert command.err.startswith(f"meshwright: the loss of step 4 (samples 24 to 31) is NaN or infinite: {message}\n")
    assert events_of(run, "nan")[0]["message"] == message
    assert [step["step"] for step in steps_of(run)] == [1, 2, 3]
    assert sorted(path.name[-1] for path in (run / "checkpoints").iterdir() if path.is_dir())[-1] == "3"


def test_a_gradient_that_is_too_large_is_reported_and_training_goes_on(plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "14", "--name", "a", "--no-save", before=injected.large_gradient, with_=(1, 12, 1e5))
    assert command.wait() == 0, command.err
    run = tmp_path / "runs" / "a"
    (event,) = events_of(run, "gradient_spike")
    assert (event["step"], event["ranks"], event["parameter"].split(".")[-1]) == (12, [1], "weight")
    assert event["message"].startswith("the gradient norm of step 13 is ") and event["message"] in command.out
    assert len(steps_of(run)) == 14


@pytest.mark.parametrize("where, bit, num_steps", [("sum", 23, 1), ("weight", 0, NUM_PARTS)])
def test_a_flipped_bit_is_found_and_the_rank_named(small: Small, tmp_path: Path, where: str, bit: int, num_steps: int) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "dp=3,mbs=1,zero=0", global_batch=3)
    command = train(tmp_path, plan, "--steps", "80", "--name", "a", "--no-save", before=injected.flipped_bit, with_=(1, 5, bit, where))
    assert command.wait() == 1
    (event,) = events_of(tmp_path / "runs" / "a", "damage")
    assert (event["ranks"], event["what"]) == ([1], "sum" if where == "sum" else "state")
    assert 5 <= event["step"] < 6 + num_steps
    assert event["message"] in command.err and "--resume" in command.err


def test_an_unforeseen_failure_is_reported_once(plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "5", "--name", "a", before=injected.broken, with_=(1, 2))
    assert command.wait() == 1
    assert command.err.startswith("meshwright: rank 1 failed: OutOfMemoryError: tried to allocate 3 GiB\n")
    assert command.err.count("meshwright: ") == 1
    message = "rank 1 failed: OutOfMemoryError: tried to allocate 3 GiB"
    assert end_of(tmp_path / "runs" / "a") == ("failed", {"reason": "exception", "rank": 1, "exit_code": 1, "message": message})


def test_a_slow_rank_is_named_within_50_steps(small: Small, tmp_path: Path) -> None:
    """The times of the ranks are drawn, because on a busy machine other ranks may be as slow: the rest of the way is the real one."""
    plan, run = small.plan_file(tmp_path / "plan.json", "dp=3,mbs=1", global_batch=3), tmp_path / "runs" / "a"
    command = train(tmp_path, plan, "--steps", "50", "--name", "a", "--no-save", before=injected.drawn_times, with_=(0.2, 0.05, {1: 1.3}))
    assert command.wait() == 0, command.err
    named = events_of(run, "slow_rank")
    assert [event["rank"] for event in named] == [1]
    assert named[0]["step"] <= 50
    assert "slower than ranks 0, 2, which do the same work" in command.out


@pytest.mark.parametrize("how", ["stopped", pytest.param("asleep", marks=pytest.mark.long)])
def test_a_hang_is_ended_and_explained(slow_run: Callable[..., Command], tmp_path: Path, how: str) -> None:
    run = tmp_path / "runs" / "a"
    if how == "asleep":
        command = slow_run("--stall-timeout", "2", before=injected.stuck, with_=(1, 3))
    else:
        command = slow_run("--stall-timeout", "2")
        ranks = command.ranks(2)
        command.step(run, 2)
        os.kill(ranks[1], signal.SIGSTOP)
    assert command.wait() == 75
    assert command.err.startswith("meshwright: rank 1 (tp 0, cp 0, pp 0, dp 1) has ")
    assert "; rank 0 waits for it in the " in command.err
    message, calls = command.err.splitlines()
    stall = events_of(run, "stall")[0]
    assert (stall["message"], stall["flight"]) == (message.removeprefix("meshwright: "), calls.removeprefix("  calls: "))
    missing = "rank 1 left no trace" if how == "stopped" else "rank 1 had not (the last that had been entered there is "
    assert "group of ranks 0, 1, float" in calls
    assert f": rank 0 had entered it, {missing}" in calls
    assert read_run(run).header.status == "failed"
    assert not session(command.pid)


def test_steps_that_are_profiled_say_how_much_communication_is_hidden(plan: Path, unbroken: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "6", "--name", "a", "--no-save", "--trace-from", "3")
    assert command.wait() == 0, command.err
    run = tmp_path / "runs" / "a"
    (event,) = events_of(run, "profile")
    assert (event["step"], event["first_step"], event["num_steps"], event["num_traced_ranks"]) == (5, 3, 3, 2)
    assert event["message"] in command.out
    processes = profile_of(tuple(sorted((run / "traces").iterdir()))).processes
    assert [process.rank for process in processes] == [0, 1]
    assert (
        event["communication_s"] == pytest.approx(sum(process.communication_s for process in processes) / 2)
        and event["communication_s"] > 0
    )
    assert event["hidden_s"] == pytest.approx(sum(process.hidden_s for process in processes) / 2)
    assert event["overlap_pct"] == pytest.approx(100 * event["hidden_s"] / event["communication_s"])
    assert [step["loss"] for step in steps_of(run)] == [step["loss"] for step in steps_of(unbroken)][:6]


def test_slow_evaluations_and_saves_are_no_hang(plan: Path, tmp_path: Path) -> None:
    arguments = ("--steps", "4", "--name", "a", "--checkpoint-every", "2", "--stall-timeout", "1")
    command = train(tmp_path, plan, *arguments, before=injected.slow_evaluation, with_=(1, 4.0))
    assert command.wait() == 0, command.err
    assert not events_of(tmp_path / "runs" / "a", "stall")


def test_json_alone_on_standard_output(plan: Path, tmp_path: Path) -> None:
    command = train(tmp_path, plan, "--steps", "2", "--name", "a", "--json")
    assert command.wait() == 0
    document = json.loads(command.out)
    assert (document["num_steps"], document["status"]) == (2, "finished") and problems(document) == []
    assert parse_layout(document["layout"]["text"]) == read_plan(plan).layout and document["layout"]["dp"] == 2
    assert command.err.startswith("training  small, ")
    assert "step 1/2  loss " in command.err


def test_the_target_is_reached_and_mlperf_agrees(small: Small, tmp_path: Path) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "dp=2", evaluation=EVALUATION, training={"target_loss": 6.2})
    command = train(tmp_path, plan, "--name", "a")
    assert command.wait() == 0, command.err
    run = read_run(tmp_path / "runs" / "a")
    assert run.header.status == "target_reached"
    assert run.events[-1].kind in ("evaluation", "checkpoint")
    found = check_log(tmp_path / "runs" / "a" / "mlperf.log")
    assert found.passed, found.complaints
    assert found.rules == "official common rules of ruleset 6.0.0 + meshwright's own benchmark file"


def test_a_missed_target_is_the_only_complaint(small: Small, tmp_path: Path) -> None:
    plan = small.plan_file(tmp_path / "plan.json", "dp=2", evaluation=EVALUATION, training={"target_loss": 1.0})
    assert train(tmp_path, plan, "--name", "a", "--steps", "3").wait() == 0
    found = check_log(tmp_path / "runs" / "a" / "mlperf.log")
    assert len(found.complaints) == 1 and "eval_accuracy" in found.complaints[0]


def test_a_run_of_another_seed_is_another_run(plan: Path, unbroken: Path, tmp_path: Path) -> None:
    assert train(tmp_path, plan, "--steps", "1", "--name", "a", "--seed", "3", "--no-save").wait() == 0
    run = tmp_path / "runs" / "a"
    assert steps_of(run)[0]["loss"] != steps_of(unbroken)[0]["loss"]
    assert not list((run / "checkpoints").iterdir())


def test_the_log_of_a_real_8b_run_misses_only_its_target() -> None:
    """One step and one full evaluation of Llama 3.1 8B on an H200, 2026-11-15: `meshwright train PLAN --benchmark llama31_8b --steps 1`."""
    found = check_log(Path(__file__).parents[1] / "fixtures" / "llama31_8b_h200.log")
    assert found.rules == "official common rules of ruleset 6.0.0 + the official benchmark file"
    assert len(found.complaints) == 1
    assert "eval_accuracy" in found.complaints[0]


def test_nothing_to_go_on_from(plan: Path, tmp_path: Path) -> None:
    assert train(tmp_path, plan, "--steps", "1", "--name", "a", "--no-save").wait() == 0
    command = train(tmp_path, "--name", "a", "--resume")
    assert command.wait() == 2
    assert command.err == (
        "meshwright: no checkpoint to continue from: there is none\n"
        "  where: runs/a/checkpoints\n"
        "  fix:   start it over: --name a --resume-if-exists\n"
    )


def test_a_run_that_is_over_has_nothing_to_do(unbroken: Path) -> None:
    command = train(unbroken.parents[1], "--name", "a", "--resume", "--steps", str(NUM_STEPS))
    assert command.wait() == 0, command.err
    assert [step["step"] for step in steps_of(unbroken)] == list(range(1, NUM_STEPS + 1))
    assert [path.name for path in (unbroken / "checkpoints").glob("step-*8*")] == ["step-00000008"]
