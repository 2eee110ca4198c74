"""`meshwright scale`: what it asks of a run, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshwright.cli.main import main
from meshwright.describe.load import EMULATED, load_cluster, load_model, load_workload
from meshwright.job import Job
from meshwright.layout import Layout
from meshwright.plan.plan import plan_bytes, plan_of
from meshwright.record.header import RunHeader
from meshwright.record.lock import RunLock
from meshwright.record.request import taken_request
from meshwright.record.writer import RunWriter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with two replicas."""
    job = Job(load_model("llama-2m"), load_cluster(EMULATED).resized(2), load_workload("python-stdlib"))
    plan = plan_of(job.forecast(Layout(dp=2, micro_batch=4)), "small")
    header = RunHeader(name="a", kind="trained", seed=0, num_ranks=2, machine="2 ranks", sequence_length=8, num_steps=9, last_step=9)
    with RunWriter.create(tmp_path, header, plan_bytes(plan)) as writer:
        writer.event("membership", 0, from_step=1, dp=2)
    return tmp_path / "a"


def test_a_run_that_trains_is_asked(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock.take(run):
        assert main(["scale", str(run), "--dp", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["dp"], found["dp_before"]) == (4, 2)
    assert taken_request(run) == 4


def test_more_replicas_than_micro_batches_are_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunLock.take(run):
        assert main(["scale", str(run), "--dp", "100000"]) == 2
    assert "100000 replicas cannot share a batch of" in capsys.readouterr().err
    assert taken_request(run) is None


def test_a_run_that_does_not_train_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", str(run), "--dp", "1"]) == 2
    assert "no process trains this run now" in capsys.readouterr().err


def test_a_run_that_does_not_keep_going_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "events.jsonl").write_text("")
    assert main(["scale", str(run), "--dp", "1"]) == 2
    assert "the replicas of this run cannot change" in capsys.readouterr().err
