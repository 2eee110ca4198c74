"""Checkpoints in object storage: the promises of a disk, on real servers, with faults, and killed at any request."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from object_servers import FaultProxy, ObjectServer
from on_place import save_value
from states import States

from meshwright.storage import Remote, StorageError
from meshwright.train.checkpoint import AsyncSaver, CheckpointError, Keep, Piece, load, newest, newest_loadable, save, verify
from meshwright.train.checkpoint.attempt import Attempt
from meshwright.train.checkpoint.on_storage import StoredFiles

OLD, NEW = 1.0, 2.0


@pytest.fixture(params=["s3", "azure"])
def folder(request: pytest.FixtureRequest) -> Remote:
    server: ObjectServer = request.getfixturevalue(request.param)
    return server.place() / "checkpoints"


def test_one_rank_saves_and_loads(folder: Remote, states: States) -> None:
    saved = states.save(folder, 4, OLD)
    assert saved.path == folder / "step-00000004"
    assert newest(folder).path == newest_loadable(folder).path == saved.path
    assert states.value(saved.path) == OLD
    assert folder.files() == {} and sorted(saved.path.files()) == [".attempt", "manifest.json", "shard-00000-of-00001.safetensors"]


def test_ranks_save_together_and_any_cut_is_loaded(folder: Remote, states: States) -> None:
    path = states.save_by_ranks(folder, 4, OLD, 3)
    assert states.value(path) == OLD
    for part in range(4):
        verify(path, part=part, num_parts=4)
    half = states.pieces(0.0, rank=1, num_ranks=2)
    load(path, half, names=set(states.shapes))
    assert all(float(piece.tensor.min()) == OLD for piece in half if piece.tensor.numel())


def test_the_same_step_again_and_pruning(folder: Remote, states: States) -> None:
    states.save(folder, 2, 0.0)
    states.save(folder, 4, OLD)
    again = states.save(folder, 4, NEW, keep=Keep(last=2))
    assert again.path.name == "step-00000004.1" and newest(folder).path == again.path
    assert again.notes == ("pruned step-00000004",)
    assert folder.folders() == ["step-00000002", "step-00000004.1"]


def test_a_copy_of_the_folder_is_a_checkpoint_on_a_disk(s3: ObjectServer, states: States, tmp_path: Path) -> None:
    path = states.save_by_ranks(s3.place(), 4, OLD, 2)
    copy = tmp_path / path.name
    copy.mkdir()
    for name in path.files():
        (copy / name).write_bytes((path / name).read())
    assert newest_loadable(tmp_path).path == copy
    assert states.value(copy) == OLD


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_a_damaged_shard_is_named_and_the_older_checkpoint_is_used(s3: ObjectServer, states: States, damage: str) -> None:
    folder = s3.place()
    states.save(folder, 2, OLD)
    path = states.save_by_ranks(folder, 4, NEW, 2)
    shard = path / "shard-00001-of-00002.safetensors"
    content = bytearray(shard.read())
    content[-1] ^= 1
    {"flip": lambda: shard.write(bytes(content)), "cut": lambda: shard.write(bytes(content[:-9])), "remove": shard.remove}[damage]()
    found = newest_loadable(folder)
    assert found.path == folder / "step-00000002"
    assert [place.name for place, why in found.skipped] == ["step-00000004"] and shard.name in found.skipped[0][1]


def test_a_manifest_that_is_damaged_is_skipped(s3: ObjectServer, states: States) -> None:
    folder = s3.place()
    states.save(folder, 2, OLD)
    path = states.save(folder, 4, NEW).path
    (path / "manifest.json").write((path / "manifest.json").read()[:-10])
    assert newest(folder).path == folder / "step-00000002"


def test_a_dead_server_is_not_damage(proxy: FaultProxy, s3: ObjectServer, states: States) -> None:
    folder = s3.place(patience_s=0.3)
    states.save(folder, 2, OLD)
    proxy.faults.is_dead = True
    for find in (newest, newest_loadable):
        with pytest.raises(StorageError, match="did not answer"):
            find(folder)


def test_a_save_survives_faults_that_pass(proxy: FaultProxy, s3: ObjectServer, states: States) -> None:
    folder = s3.place()
    proxy.faults.latency_s = 0.01
    proxy.faults.answers = [503, "reset", 429, "reset", 500] * 3
    states.save_by_ranks(folder, 4, OLD, 2)
    proxy.faults.answers, proxy.faults.only = ["truncate"] * 3, "GET"
    assert states.value(newest_loadable(folder).path) == OLD


def test_a_server_that_dies_fails_the_save_and_the_next_one_works(proxy: FaultProxy, s3: ObjectServer, states: States) -> None:
    folder = s3.place(patience_s=0.3)
    with AsyncSaver(folder, keep=Keep(last=1)) as saver:
        saver.save(2, states.pieces(OLD), {"value": OLD})
        assert [report.failure for report in saver.wait()] == [None]
        proxy.faults.is_dead = True
        saver.save(4, states.pieces(NEW), {"value": NEW})
        (failed,) = saver.wait()
        assert failed.failure is not None and "did not answer" in failed.failure.what
        proxy.faults.is_dead = False
        assert states.value(newest_loadable(folder).path) == OLD
        saver.save(6, states.pieces(NEW), {"value": NEW})
        (report,) = saver.wait()
    assert report.failure is None and states.value(newest_loadable(folder).path) == NEW
    assert folder.folders() == ["step-00000006"]


def test_a_rank_that_fails_is_named_by_all(s3: ObjectServer, states: States, together: Callable) -> None:
    folder = s3.place()

    def rank(number: int) -> None:
        pieces = states.pieces(OLD, rank=number, num_ranks=2)
        if number:
            pieces = [
                Piece(name="weights/b", shape=(5,), start=(0,), tensor=pieces[0].tensor[:, 0].clone()),
                *pieces,
            ]  # twice the same element
        save(folder, 4, pieces, {}, rank=number, num_ranks=2, token="ab", number=1, timeout_s=20.0)

    with pytest.raises(CheckpointError, match="overlap"):
        together([lambda number=number: rank(number) for number in range(2)])
    assert newest(folder).path is None


def test_two_saves_never_share_a_folder(s3: ObjectServer) -> None:
    folder = s3.place()
    kinds = {"folder": folder, "step": 4, "rank": 0, "num_ranks": 1, "number": 1, "timeout_s": 5.0}
    places = []
    for token in ("aa", "bb", "aa"):
        files = StoredFiles(Attempt(token=token, **kinds), folder)
        files.begin()
        places.append(files.place.name)
    assert places == ["step-00000004", "step-00000004.1", "step-00000004"]


class Killed:
    """Saves of a new checkpoint beside an old one, by processes that are killed at a request."""

    def __init__(self, server: ObjectServer, states: States) -> None:
        self.proxy, self.server, self.states = FaultProxy(server.port), server, states  # before the victims alone
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["meshwright.train.checkpoint"])

    def run(self, kill_at: int, *, kills_after: bool, num_ranks: int, victim: int) -> tuple[int | None, float]:
        """How the victim ended, and the value of what is found then."""
        folder = self.server.place(patience_s=10.0)
        self.states.save(folder, 2, OLD)
        ends, processes = [], []
        for rank in range(num_ranks):
            ours, theirs = self.context.Pipe()
            arguments = (theirs, str(folder), 4, NEW, rank, num_ranks, self.server.variables(self.proxy.port))
            processes.append(self.context.Process(target=save_value, args=arguments))
            processes[-1].start()
            ends.append(ours)
        self.proxy.faults.num_requests, self.proxy.faults.kill_at = 0, kill_at
        self.proxy.faults.kills_after, self.proxy.faults.victim = kills_after, processes[victim].pid
        for end in ends:
            end.send("go")
        processes[victim].join()
        self.proxy.faults.kill_at = 0
        for process in processes:
            process.kill()
            process.join()
        return processes[victim].exitcode, self.check(folder)

    def check(self, folder: Remote) -> float:
        """The value of what is found now."""
        found = newest_loadable(folder)
        assert found.path is not None and all("not finished" in why for _, why in found.skipped), found.skipped
        return self.states.value(found.path)


@pytest.mark.parametrize("kills_after", [False, True], ids=["before the server is asked", "before its answer arrives"])
def test_one_rank_killed_at_every_request(s3: ObjectServer, states: States, kills_after: bool) -> None:
    killed = Killed(s3, states)
    values = []
    for kill_at in range(1, 200):
        code, value = killed.run(kill_at, kills_after=kills_after, num_ranks=1, victim=0)
        values.append(value)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert len(values) > 15
    killed.proxy.close()
    # Once the new one counts, it stays: all old, then all new.
    assert values == sorted(values) and {OLD, NEW} == set(values)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_ranks_killed_at_some_requests(s3: ObjectServer, states: States, victim: int) -> None:
    killed = Killed(s3, states)
    values = [killed.run(kill_at, kills_after=False, num_ranks=2, victim=victim)[1] for kill_at in range(1, 40, 6)]
    killed.proxy.close()
    assert values[0] == OLD and set(values) <= {OLD, NEW}


def test_the_next_save_removes_what_a_killed_one_left(s3: ObjectServer, states: States) -> None:
    folder = s3.place()
    files = StoredFiles(Attempt(folder=folder, step=4, rank=0, num_ranks=1, token="aa", number=1, timeout_s=5.0), folder)
    files.begin()
    (files.place / "shard-00000-of-00001.safetensors").write(b"half")
    assert newest(folder).skipped == ((files.place, "the save was not finished"),)
    saved = states.save(folder, 6, OLD)
    assert saved.notes == ("removed step-00000004, the rest of a save that was cut off",)
    assert folder.names() == ["step-00000006"]
