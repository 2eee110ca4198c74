"""A job is followed from the queue to its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.engines import follow as following
from meshwright.engines.engine import CANCELLED, DONE, FAILED, RUNNING, WAITING, State
from meshwright.engines.follow import MOST_LOST, follow
from meshwright.errors import InputError


def step(number: int) -> bytes:
    entry = {
        "step": number,
        "samples": 8,
        "loss": 5.0 - number,
        "grad_norm": 1.0,
        "step_s": 2.0,
        "compute_s": 1.5,
        "exposed_dp_s": 0.4,
        "exposed_tp_s": 0.1,
    }
    return json.dumps(entry).encode() + b"\n"


class Script:
    """An engine whose states and files follow a script, a poll each."""

    outlives = True

    def __init__(self, *polls, files=()):
        self.polls, self.files, self.cancelled = list(polls), list(files), []
        self.now: dict[str, bytes] = {}

    def state(self, job):
        if self.files:
            self.now = self.files.pop(0) or self.now
        poll = self.polls.pop(0) if len(self.polls) > 1 else self.polls[0]
        if isinstance(poll, Exception):
            raise poll
        return poll

    def read(self, path: Path, offset: int) -> bytes:
        return self.now.get(path.name, b"")[offset:]

    def cancel(self, job):
        self.cancelled.append(job)


def followed(engine, request, **more):
    lines = []
    ending = follow(engine, "17", request, lines.append, poll_s=0.0, **more)
    return ending, lines


def test_the_queue_the_nodes_and_the_steps_are_told(request_of):
    header = json.dumps({"last_step": 9}).encode()
    one, two = {"steps.jsonl": step(1), "run.json": header}, {"steps.jsonl": step(1) + step(2) + step(3)[:20], "run.json": header}
    engine = Script(
        State(phase=WAITING, reason="PENDING (Priority)", position=(3, 5)),
        State(phase=WAITING, reason="PENDING (Priority)", position=(3, 5)),
        State(phase=WAITING, reason="PENDING (Resources)", position=(1, 5)),
        State(phase=RUNNING, nodes=("n0", "n1")),
        State(phase=RUNNING, nodes=("n0", "n1")),
        State(phase=DONE),
        files=[None, None, None, one, two, None],
    )
    request = request_of()
    ending, lines = followed(engine, request)
    assert lines == [
        "number 3 of 5 in the queue: PENDING (Priority)",
        "number 1 of 5 in the queue: PENDING (Resources)",
        "running on 2 nodes: n[0-1]",
        "step 1 of 9, loss 4.0000, 2 s a step, 500 ms of it exposed communication",
        "step 2 of 9, loss 3.0000, 2 s a step, 500 ms of it exposed communication",
    ]
    assert ending.phase == DONE and ending.message.startswith("the job is done: step 2 of 9")
    kept = request.folder / "run" / "first"  # the run folder is not on this machine
    assert (kept / "steps.jsonl").read_bytes() == two["steps.jsonl"] and (kept / "run.json").read_bytes() == header


def test_a_run_folder_that_is_here_is_not_copied(request_of, tmp_path):
    (tmp_path / "runs" / "first").mkdir(parents=True)
    request = request_of(runs=tmp_path / "runs")
    followed(Script(State(phase=DONE), files=[{"steps.jsonl": step(1)}]), request)
    assert not (request.folder / "run").exists()


@pytest.mark.parametrize(
    "phase, what",
    [(FAILED, "the job failed: NODE_FAIL; no step yet\n  last words"), (CANCELLED, "the job was cancelled from outside: NODE_FAIL")],
)
def test_a_job_that_ends_badly_says_why(request_of, phase, what):
    engine = Script(State(phase=phase, reason="NODE_FAIL"), files=[{"output.log": b"last words\n"}])
    ending, lines = followed(engine, request_of())
    assert ending.phase == phase and ending.message.startswith(what) and lines == []


def test_a_job_that_never_starts_is_cancelled(request_of):
    engine = Script(State(phase=WAITING, reason="PENDING (Resources)"))
    with pytest.raises(InputError, match=r"did not start within 0 s, and was cancelled"):
        followed(engine, request_of(), give_up_s=0.0)
    assert engine.cancelled == ["17"]


def test_a_controller_that_restarts_does_not_end_the_following(request_of):
    lost = InputError("no answer", fix="wait")
    ending, _ = followed(Script(*[lost] * (MOST_LOST - 1), State(phase=DONE)), request_of())
    assert ending.phase == DONE
    with pytest.raises(InputError, match="no answer"):
        followed(Script(lost), request_of())


def test_a_damaged_line_is_skipped(request_of):
    ending, lines = followed(
        Script(State(phase=RUNNING), State(phase=DONE), files=[{"steps.jsonl": b"{}\nnull\n" + step(1)}]), request_of()
    )
    assert lines == ["running", "step 1, loss 4.0000, 2 s a step, 500 ms of it exposed communication"] and ending.phase == DONE


def test_a_run_at_a_url_is_read_there(request_of, s3):
    place = s3.place()
    run = place / "first"
    (run / "run.json").write(json.dumps({"last_step": 9}).encode())
    (run / "steps.jsonl").write(step(1) + step(2))
    ending, lines = followed(Script(State(phase=RUNNING), State(phase=DONE)), request_of(runs=place))
    assert lines == ["running", "step 2 of 9, loss 3.0000, 2 s a step, 500 ms of it exposed communication"]
    assert ending.message.startswith("the job is done: step 2 of 9")


def test_a_dead_server_is_told_once_and_the_job_is_followed_on(request_of, s3, proxy, monkeypatch):
    monkeypatch.setattr(following, "URL_PATIENCE_S", 0.2)
    place = s3.place()
    proxy.faults.is_dead = True
    ending, lines = followed(Script(State(phase=RUNNING), State(phase=RUNNING), State(phase=DONE)), request_of(runs=place))
    assert len(lines) == 2 and lines[1].startswith("the records of the run cannot be read: cannot find steps.jsonl")
    assert ending.message == "the job is done: no step yet"


def test_a_job_that_is_queued_again_is_not_said_to_be_on_its_old_nodes(request_of):
    old, new = {"placing.txt": b"2 nodes in 1 rack (rack0): a[0-1]\n"}, {"placing.txt": b"2 nodes in 1 rack (rack1): b[0-1]\n"}
    running = State(phase=RUNNING)
    engine = Script(running, State(phase=WAITING), running, running, State(phase=DONE), files=[old, None, None, new, None])
    _, lines = followed(engine, request_of())
    assert lines == ["running", "2 nodes in 1 rack (rack0): a[0-1]", "waiting", "running", "2 nodes in 1 rack (rack1): b[0-1]"]
