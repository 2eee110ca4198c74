"""Saving in the background: what was copied is what is saved, and trouble is reported, not thrown."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.train.checkpoint import AsyncSaver, CheckpointError, Keep, newest, shared_token


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes nothing until the event is set."""
    event = threading.Event()
    real = os.write

    def slow(fd: int, data: object) -> int:
        event.wait(30)
        return real(fd, data)

    monkeypatch.setattr(os, "write", slow)
    return event


def test_what_is_saved_is_the_state_at_the_call(tmp_path: Path, states, gate: threading.Event) -> None:
    pieces = states.pieces(1.0)
    scalars = {"value": 1.0}
    with AsyncSaver(tmp_path / "runs" / "checkpoints") as saver:
        stall_s = saver.save(1, pieces, scalars)
        for piece in pieces:
            piece.tensor.fill_(7.0)  # the training goes on
        scalars["value"] = 7.0
        assert saver.finished() == []
        gate.set()
        (report,) = saver.wait()
    assert report.failure is None and report.path == tmp_path / "runs" / "checkpoints" / "step-00000001"
    assert 0 < stall_s == report.stall_s
    assert (
        report.write_s > 0 and report.commit_s > 0 and report.num_bytes == (report.path / "shard-00000-of-00001.safetensors").stat().st_size
    )
    assert states.value(report.path) == 1.0


def test_the_next_save_waits_for_the_one_under_way_and_counts_it_as_stall(tmp_path: Path, states, gate: threading.Event) -> None:
    saver = AsyncSaver(tmp_path, keep=Keep(last=2))
    saver.save(1, states.pieces(1.0), {"value": 1.0})
    threading.Timer(0.2, gate.set).start()
    assert saver.save(2, states.pieces(2.0), {"value": 2.0}) > 0.1
    reports = saver.wait()
    assert [report.step for report in reports] == [1, 2]
    assert [states.value(report.path) for report in reports] == [1.0, 2.0]


def test_the_copy_may_run_alongside_until_the_update(tmp_path: Path, states, gate: threading.Event) -> None:
    pieces = states.pieces(1.0)
    saver = AsyncSaver(tmp_path)
    stall_s = saver.save_alongside(1, pieces, {"value": 1.0})
    wait_s = saver.before_update()
    for piece in pieces:
        piece.tensor.fill_(7.0)
    gate.set()
    (report,) = saver.wait()
    assert states.value(report.path) == 1.0
    assert report.stall_s == stall_s + wait_s
    assert saver.before_update() < 1.0  # nothing is under way


def test_an_update_that_does_not_wait_for_the_copy_is_found_out(tmp_path: Path, states, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = states.pieces(1.0)
    saver = AsyncSaver(tmp_path)
    real = saver._snapshot.take

    def take(layout: object) -> None:
        real(layout)
        pieces[2].tensor.add_(1.0)  # as an optimizer does

    monkeypatch.setattr(saver._snapshot, "take", take)
    saver.save_alongside(1, pieces, {"value": 1.0})
    (report,) = saver.wait()
    assert report.failure.what == "'adam_mean/a' was changed while it was copied"
    assert newest(tmp_path).path is None
    saver.before_update()


def test_host_memory_is_used_again_and_grows_when_it_must(tmp_path: Path, states) -> None:
    saver = AsyncSaver(tmp_path)
    saver.prepare(states.pieces(0.0))
    places = []
    for step in range(3):
        saver.save(step, states.pieces(float(step)), {"value": float(step)})
        saver.wait()
        places.append(saver._snapshot._memory.data_ptr())
    assert len(set(places)) == 1
    states.shapes = states.shapes | {"more": (1000, 3)}
    report = saver.save_now(9, states.pieces(5.0), {"value": 5.0})
    assert states.value(report.path) == 5.0


def test_a_disk_that_hangs_holds_up_neither_training_nor_end(tmp_path: Path, states, gate: threading.Event) -> None:
    saver = AsyncSaver(tmp_path, timeout_s=0.1)
    saver.save(1, states.pieces(1.0), {"value": 1.0})
    start_s = time.monotonic()
    saver.save(2, states.pieces(2.0), {"value": 2.0})
    assert [(report.step, report.failure.what) for report in saver.finished()] == [
        (2, "step 2 is not saved: the previous save is still running")
    ]
    now = saver.save_now(3, states.pieces(3.0), {"value": 3.0}, timeout_s=0.1)
    assert now.failure and now.path is None
    assert time.monotonic() - start_s < 10
    gate.set()
    (late,) = saver.wait(timeout_s=30.0)
    assert (late.step, states.value(late.path)) == (1, 1.0)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_failed_write_is_reported_and_the_last_good_one_stays(code: int, tmp_path: Path, states, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = AsyncSaver(tmp_path)
    saver.save_now(1, states.pieces(1.0), {"value": 1.0}).raise_if_failed()

    def refuse(fd: int, data: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", refuse)
        saver.save(2, states.pieces(2.0), {"value": 2.0})
        (report,) = saver.wait()
    assert report.path is None and report.failure.what == f"cannot write shard-00000-of-00001.safetensors: {os.strerror(code)}"
    assert report.failure.fix
    assert states.value(newest(tmp_path).path) == 1.0
    assert states.value(saver.save_now(3, states.pieces(3.0), {"value": 3.0}).path) == 3.0


def test_a_failure_is_raised_where_that_is_asked_for(tmp_path: Path, states) -> None:
    saver = AsyncSaver(tmp_path / "checkpoints", raise_failures=True)
    shutil.rmtree(tmp_path / "checkpoints")
    saver.save(1, states.pieces(1.0), {"value": 1.0})
    with pytest.raises(CheckpointError, match="cannot begin the checkpoint of step 1: No such file or directory"):
        saver.wait()
    assert not (tmp_path / "checkpoints").exists()


def test_what_no_one_foresaw_is_reported_too(tmp_path: Path, states, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = AsyncSaver(tmp_path)
    monkeypatch.setattr(os, "mkdir", lambda path: 1 / 0)
    saver.save(1, states.pieces(1.0), {"value": 1.0})
    assert saver.wait()[0].failure.what == "the save of step 1 broke: ZeroDivisionError('division by zero')"


def test_saving_now_leaves_the_reports_of_earlier_saves(tmp_path: Path, states) -> None:
    saver = AsyncSaver(tmp_path)
    saver.save(1, states.pieces(1.0), {"value": 1.0})
    assert saver.save_now(2, states.pieces(2.0), {"value": 2.0}).step == 2
    assert [report.step for report in saver.finished()] == [1]


def test_ranks_save_together_many_times(tmp_path: Path, states, together) -> None:
    def rank_runs(rank: int) -> list:
        with AsyncSaver(tmp_path, rank=rank, num_ranks=4, token="ab", keep=Keep(last=2), timeout_s=30.0) as saver:
            for step in range(1, 6):
                saver.save(step, states.pieces(float(step), rank=rank, num_ranks=4), {"value": float(step)})
            return saver.wait()

    by_rank = together([lambda rank=rank: rank_runs(rank) for rank in range(4)])
    assert [[report.path.name for report in reports] for reports in by_rank] == [[f"step-{step:08d}" for step in range(1, 6)]] * 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]
    assert states.value(newest(tmp_path).path) == 5.0


def test_ranks_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="need a token"):
        AsyncSaver(tmp_path, num_ranks=2)


def share(rank: int, store: str, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        (Path(folder) / str(rank)).write_text(shared_token())
    finally:
        dist.destroy_process_group()


def test_ranks_of_a_group_get_one_token(tmp_path: Path) -> None:
    assert shared_token() != shared_token()
    torch.multiprocessing.start_processes(share, (str(tmp_path / "store"), str(tmp_path)), nprocs=2, start_method="fork")
    tokens = [(tmp_path / str(rank)).read_text() for rank in range(2)]
    assert tokens[0] == tokens[1] and len(bytes.fromhex(tokens[0])) == 8
