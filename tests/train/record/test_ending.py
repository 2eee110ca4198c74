"""How a run ended where rank 0 could not write it: who was left records it, once, and never in a folder that is another run's."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from pathlib import Path

import injected
import pytest
import torch.distributed as dist
from small_run import events_of, free_port, last_step, launched

from meshwright.record.entries import StepRecord
from meshwright.record.header import RunHeader
from meshwright.record.run import read_run
from meshwright.record.writer import RunWriter
from meshwright.train.health.watch import RankState
from meshwright.train.launch import Failure, Place
from meshwright.train.record import ending
from meshwright.train.record.ending import gone_ranks, loss_in_words, notices_first, opened, record_end, record_failure


@pytest.mark.parametrize("dead", [0, 1])
def test_under_another_launcher_a_rank_that_is_left_records_the_end(plan_of_two: Path, tmp_path: Path, dead: int) -> None:
    port, run = free_port(), tmp_path / "runs" / "a"
    arguments = (plan_of_two, "--steps", "5", "--rendezvous-timeout", "40")
    both = [launched(tmp_path, rank, port, *arguments, before=injected.exits, with_=(dead, 2, 3)) for rank in (0, 1)]
    codes = [command.wait(60.0) for command in both]
    assert (codes[dead], codes[1 - dead]) == (3, 1)
    assert read_run(run).header.status == "failed"
    (event,) = events_of(run, "failed")
    assert (event["reason"], event["rank"], event["step"]) == ("connection", dead, last_step(run))
    assert (event["gone"], event["noticed_by"]) == ([dead], 1 - dead)
    assert both[1 - dead].err.endswith(f"meshwright: {event['message']}\n")
    assert event["message"].startswith(f"rank {dead} has ended without a message; rank {1 - dead} lost the connection")


def reported(place: Place, rank: int, beat: int) -> None:
    state = RankState(rank=rank, beat=beat, step=3, doing="a step", waits=None, idle_s=0.0, limit_s=10.0)
    place.control.apart("watch", 5.0).set(f"rank/{rank}", json.dumps(asdict(state)))


def test_who_has_gone_reports_no_more_and_has_noticed_nobody() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    place = Place(rank=2, num_ranks=4, local_rank=2, num_local_ranks=4, store=store, secret=b"a secret of the job")
    for rank in range(4):
        reported(place, rank, 7)
    assert [notices_first(store, rank) for rank in (2, 0)] == [True, False]
    later = threading.Timer(0.05, reported, (place, 1, 8))  # still at work: it has not noticed anything yet
    later.start()
    assert gone_ranks(place, wait_s=0.3) == [3]
    later.join()


def test_a_store_that_is_gone_is_its_hosts_end() -> None:
    class Gone:
        def check(self, *given: object) -> bool:
            raise RuntimeError("Connection reset by peer")

        set = add = clone = check

    place = Place(rank=1, num_ranks=2, local_rank=1, num_local_ranks=2, store=Gone(), host=0)  # type: ignore[arg-type]
    assert notices_first(place.store, 1)
    assert gone_ranks(place) == [0]
    assert gone_ranks(replace(place, host=None)) == []


def test_what_is_said_of_them() -> None:
    assert loss_in_words(0, [1, 2]).startswith("ranks 1, 2 have ended without a message; rank 0 lost the connection")
    assert loss_in_words(0, []) == "rank 0 lost the connection to another rank"
    assert " and 3 more have " in loss_in_words(0, range(1, 12))


def test_a_folder_that_is_another_runs_is_left_alone(tmp_path: Path) -> None:
    store, failure = dist.HashStore(), Failure(reason="exit", rank=0, message="rank 0 ended", exit_code=3)
    writer = RunWriter.create(tmp_path, RunHeader(name="a", kind="trained", seed=0, num_ranks=1, machine="one"))
    record_failure(tmp_path / "a", failure, store)
    assert read_run(tmp_path / "a").header.status == "running" and not read_run(tmp_path / "a").events
    opened(store)
    writer.step(StepRecord(step=1, samples=8, loss=1.0, grad_norm=1.0, step_s=0.1))
    writer.close()
    record_failure(tmp_path / "a", failure, store)
    run = read_run(tmp_path / "a")
    assert run.header.status == "failed"
    assert [(event.kind, event.step, event.detail["exit_code"]) for event in run.events] == [("failed", 1, 3)]


@pytest.fixture
def run(tmp_path: Path) -> RunWriter:
    """The folder of a run that has taken two steps, and goes on."""
    writer = RunWriter.create(tmp_path, RunHeader(name="a", kind="trained", seed=0, num_ranks=2, machine="one"))
    for number in (1, 2):
        writer.step(StepRecord(step=number, samples=8 * number, loss=1.0, grad_norm=1.0, step_s=0.1))
    return writer


def test_the_end_is_an_event_after_the_last_step_and_a_status(run: RunWriter) -> None:
    run.close()
    record_end(run.folder, "killed", 1, "rank 1 was killed", exit_code=-9)
    read = read_run(run.folder)
    (event,) = read.events
    assert (event.kind, event.step, read.header.status) == ("failed", 2, "failed")
    assert event.detail == {"reason": "killed", "rank": 1, "exit_code": -9, "message": "rank 1 was killed"}


def test_nobody_to_blame_is_nobody_named(run: RunWriter) -> None:
    run.close()
    record_end(run.folder, "connection", None, "a connection was lost")
    assert "rank" not in read_run(run.folder).events[0].detail


def test_a_hang_has_recorded_its_own_event(run: RunWriter) -> None:
    run.close()
    record_end(run.folder, "hang", 1, "rank 1 hangs")
    read = read_run(run.folder)
    assert not read.events and read.header.status == "failed"


def test_a_status_that_is_set_stays(run: RunWriter) -> None:
    run.finish("stopped")
    run.close()
    record_end(run.folder, "exit", 0, "rank 0 ended")
    assert read_run(run.folder).header.status == "stopped"


def test_a_folder_that_is_gone_raises_nothing(tmp_path: Path) -> None:
    record_end(tmp_path / "gone", "exit", 0, "rank 0 ended")
    assert not (tmp_path / "gone").exists()


def test_a_job_that_was_refused_before_its_first_step_leaves_no_event(tmp_path: Path) -> None:
    writer = RunWriter.create(tmp_path, RunHeader(name="a", kind="trained", seed=0, num_ranks=1, machine="one"))
    writer.close()
    store = dist.HashStore()
    opened(store)
    record_failure(tmp_path / "a", Failure(reason="input", rank=0, message="no", exit_code=2), store)
    assert not read_run(tmp_path / "a").events and read_run(tmp_path / "a").header.status == "running"


@pytest.mark.parametrize(
    "content, step",
    [
        (b"", 0),
        (b'{"step": 7}\n', 7),
        (b'{"step": 7}\n{"step": 8}\n{"ste', 8),  # the last line was being written
        (b'{"step": 7}\nnonsense\n[]\n{"other": 1}\n{"step": null}\n', 7),
        (b'{"st', 0),
    ],
)
def test_the_last_step_is_that_of_the_last_whole_line(tmp_path: Path, content: bytes, step: int) -> None:
    (tmp_path / "steps.jsonl").write_bytes(content)
    assert ending.last_step(tmp_path) == step


def test_only_the_end_of_many_steps_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "TAIL_BYTES", 40)  # less than all, and not at the beginning of a line
    (tmp_path / "steps.jsonl").write_bytes(b"".join(b'{"step": %d}\n' % number for number in range(1, 1001)))
    assert ending.last_step(tmp_path) == 1000
