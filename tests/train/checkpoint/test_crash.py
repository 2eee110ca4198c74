"""A save killed between any two calls that touch the disk leaves the old checkpoint or the new one, whole."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from meshwright.train.checkpoint import CheckpointError, Keep, newest, newest_loadable, save

# Python 3.12 warns of forks in processes with threads; the child here only writes files, and then dies.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

OLD, NEW = 1.0, 2.0
BROKE = 99
IN_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of saves wait for a real disk for minutes, and a kill does not depend on it."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else tmp_path) as name:
        yield Path(name) / "checkpoints"


def fork(body: Callable[[], object]) -> int:
    """Run `body` in a copy of this process that ends after it; return its id."""
    pid = os.fork()
    if pid == 0:
        try:
            body()
        except CheckpointError:
            os._exit(1)
        except BaseException:
            os._exit(BROKE)
        os._exit(0)
    return pid


def ended(pid: int) -> int:
    """How a child ended: its exit code, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Scenes:
    """A folder with an old checkpoint, and a save of a new one that is killed at its k-th call."""

    def __init__(self, folder: Path, states, watched, step: int) -> None:
        self.folder, self.states, self.watched, self.step = folder, states, watched, step

    def set_up(self) -> None:
        """Checkpoints to prune, one to keep, the rest of a save that was cut off, and one that was half removed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.states.save(self.folder, 1, 0.0)
        old = self.states.save(self.folder, 2, OLD).path
        for leftover in (".step-00000003.partial-cafe-1", ".trash-step-00000000-1234"):
            shutil.copytree(old, self.folder / leftover)

    def save(self, *, kill_at: int, torn: bool, rank: int = 0, num_ranks: int = 1, timeout_s: float = 20.0) -> Callable[[], None]:
        """What a rank does: save, and die before call `kill_at`; where `torn`, after half of it if it is a write."""

        def before(number: int, name: str, arguments: tuple) -> None:
            if number == kill_at:
                if torn and name == "write":
                    real_write(arguments[0], arguments[1][: len(arguments[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)

        def body() -> None:
            pieces = self.states.pieces(NEW, rank=rank, num_ranks=num_ranks)
            kinds = {"rank": rank, "num_ranks": num_ranks, "token": "ab", "number": 7, "timeout_s": timeout_s}
            with self.watched(before):
                save(self.folder, self.step, pieces, {"value": NEW}, keep=Keep(last=1), **kinds)

        real_write = os.write
        return body

    def check(self) -> float:
        """The value of what is found now: the old or the new, by sizes and by hashes; and the next save clears up."""
        found, loadable = newest(self.folder), newest_loadable(self.folder)
        assert found.path == loadable.path is not None
        assert all("not finished" in why for _, why in found.skipped), found.skipped
        value = self.states.value(found.path)
        assert value in (OLD, NEW)
        assert found.step == (self.step if value == NEW else 2)
        self.states.save(self.folder, 9, 3.0, keep=Keep(last=1))
        assert [path.name for path in self.folder.iterdir()] == ["step-00000009"]
        return value


@pytest.mark.parametrize("step, torn", [(4, False), (4, True), (2, False)], ids=["next step", "torn writes", "same step again"])
def test_one_rank_killed_at_every_call(step: int, torn: bool, folder: Path, states, watched) -> None:
    scenes = Scenes(folder, states, watched, step)
    values = []
    for kill_at in range(1, 1000):
        scenes.set_up()
        code = ended(fork(scenes.save(kill_at=kill_at, torn=torn)))
        values.append(scenes.check())
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert len(values) > 50
    # Once the new one counts, it stays: all old, then all new.
    assert values == sorted(values)
    assert {OLD, NEW} == set(values)


@pytest.mark.parametrize("victim", [0, 1])
def test_one_of_two_ranks_killed_at_every_call(victim: int, folder: Path, states, watched) -> None:
    scenes = Scenes(folder, states, watched, 4)
    values = []
    for kill_at in range(1, 1000):
        scenes.set_up()
        points = {rank: kill_at if rank == victim else 0 for rank in range(2)}
        pids = [fork(scenes.save(kill_at=point, torn=False, rank=rank, num_ranks=2, timeout_s=0.3)) for rank, point in points.items()]
        code = ended(pids[victim])
        if kill_at % 4:  # the other rank dies with it; else it lives on, and waits in vain
            os.kill(pids[1 - victim], signal.SIGKILL)
        assert BROKE not in (code, ended(pids[1 - victim]))
        values.append(scenes.check())
        if code != -signal.SIGKILL:
            break
    assert len(values) > 10
    assert values[0] == OLD


def test_shards_then_manifest_then_rename_each_on_the_disk_before_the_next(tmp_path: Path, states, watched) -> None:
    log: list[tuple[str, str]] = []
    names: dict[int, str] = {}
    real_open, real_close = os.open, os.close

    def before(_: int, name: str, arguments: tuple) -> None:
        target = names.get(arguments[0], "?") if isinstance(arguments[0], int) else Path(arguments[0]).name
        log.append((name, target))

    def open_named(path: object, *arguments: object, **options: object) -> int:
        fd = real_open(path, *arguments, **options)
        names[fd] = Path(str(path)).name
        return fd

    os.open = open_named
    try:
        with watched(before):
            save(tmp_path, 4, states.pieces(NEW), {}, token="ab")
    finally:
        os.open, os.close = real_open, real_close
    partial, shard = ".step-00000004.partial-ab-0", "shard-00000-of-00001.safetensors"
    last = {event: place for place, event in enumerate(log)}
    first_manifest = log.index(("open", "manifest.json"))
    order = [
        last["write", shard],
        last["fsync", shard],
        first_manifest,
        last["write", "manifest.json"],
        last["fsync", "manifest.json"],
        last["fsync", partial],
        last["rename", partial],
        last["fsync", tmp_path.name],
    ]
    assert order == sorted(order)
