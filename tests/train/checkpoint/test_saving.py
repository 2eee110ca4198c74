"""Ranks meet through files: one that is missing, late or refused by the disk is named, and the old checkpoint stays."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from meshwright.errors import InputError
from meshwright.train.checkpoint import AsyncSaver, CheckpointError, Keep, Piece, newest, newest_loadable, read_manifest, save, saving


@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_ranks_save_together(num_ranks: int, tmp_path: Path, states) -> None:
    path = states.save_by_ranks(tmp_path, 120, 2.0, num_ranks)
    shards = {f"shard-{rank:05d}-of-{num_ranks:05d}.safetensors" for rank in range(num_ranks)}
    assert path == tmp_path / "step-00000120"
    assert {entry.name for entry in path.iterdir()} == {"manifest.json", *shards}
    assert {entry.name for entry in tmp_path.iterdir()} == {path.name}
    assert states.value(path) == 2.0
    assert read_manifest(path).step == 120


def test_a_rank_that_stays_away_is_named_within_the_time(tmp_path: Path, states) -> None:
    start_s = time.monotonic()
    with pytest.raises(CheckpointError, match=r"no shard of step 5 from ranks 1, 2 within 0\.2 s"):
        save(tmp_path, 5, states.pieces(1.0, num_ranks=3), {}, num_ranks=3, token="ab", timeout_s=0.2)
    assert time.monotonic() - start_s < 10
    assert newest(tmp_path).path is None


def test_a_lost_rank_0_is_named_within_the_time(tmp_path: Path, states) -> None:
    with pytest.raises(CheckpointError, match=r"rank 0 did not finish step 5 within 0\.2 s"):
        save(tmp_path, 5, states.pieces(1.0, rank=1, num_ranks=2), {}, rank=1, num_ranks=2, token="ab", timeout_s=0.1)


def test_a_rank_that_fails_is_heard_by_all_at_once(tmp_path: Path, states, together) -> None:
    (tmp_path / ".step-00000005.partial-ab-0").mkdir()
    (tmp_path / ".step-00000005.partial-ab-0" / "shard-00001-of-00003.safetensors").mkdir()  # in the way of rank 1
    failures: list[str] = []

    def rank_saves(rank: int) -> None:
        try:
            save(tmp_path, 5, states.pieces(1.0, rank=rank, num_ranks=3), {}, rank=rank, num_ranks=3, token="ab", timeout_s=30.0)
        except CheckpointError as error:
            failures.append(error.what)

    start_s = time.monotonic()
    together([lambda rank=rank: rank_saves(rank) for rank in range(3)])
    assert time.monotonic() - start_s < 20
    cause = "cannot write shard-00001-of-00003.safetensors: File exists"
    assert sorted(failures) == [cause, f"rank 0 gave up the save: rank 1 could not save: {cause}", f"rank 1 could not save: {cause}"]


def test_what_an_older_attempt_left_is_not_taken_for_this_one(tmp_path: Path, states) -> None:
    with pytest.raises(CheckpointError):  # rank 1's shard of an attempt that came to nothing
        save(tmp_path, 5, states.pieces(1.0, rank=1, num_ranks=2), {}, rank=1, num_ranks=2, token="ab", timeout_s=0.05)
    with pytest.raises(CheckpointError, match="from rank 1 within"):
        save(tmp_path, 5, states.pieces(2.0, num_ranks=2), {}, num_ranks=2, token="cd", timeout_s=0.2)
    assert not list(tmp_path.glob(".*partial-ab*"))


def test_a_report_of_another_save_is_refused(tmp_path: Path, states) -> None:
    with pytest.raises(CheckpointError):
        save(tmp_path, 4, states.pieces(1.0, rank=1, num_ranks=2), {}, rank=1, num_ranks=2, token="ab", timeout_s=0.05)
    shutil.copytree(tmp_path / ".step-00000004.partial-ab-0", tmp_path / ".step-00000005.partial-ab-0")
    with pytest.raises(CheckpointError, match="belongs to another save"):
        save(tmp_path, 5, states.pieces(2.0, num_ranks=2), {}, num_ranks=2, token="ab", timeout_s=5.0)


@pytest.mark.parametrize(
    "second, message",
    [
        (Piece(name="w", shape=(4,), start=(1,), tensor=torch.ones(3)), "two pieces of 'w' overlap"),
        (Piece(name="w", shape=(4,), start=(3,), tensor=torch.ones(1)), "1 of 4 elements of 'w' are in no piece"),
        (Piece(name="w", shape=(5,), start=(2,), tensor=torch.ones(3)), r"'w' is F32 \[4\] on one rank and F32 \[5\] on another"),
        (Piece(name="w", shape=(4,), start=(2,), tensor=torch.ones(2).double()), "F64"),
    ],
)
def test_pieces_that_do_not_make_a_tensor_are_no_checkpoint(second: Piece, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        save(tmp_path, 1, [Piece(name="w", shape=(4,), start=(0,), tensor=torch.ones(2)), second], {})
    assert newest(tmp_path).path is None


def test_scalars_must_be_json_and_ranks_need_a_token(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Out of range float"):
        save(tmp_path, 1, [], {"loss": float("nan")})
    with pytest.raises(InputError, match="not JSON serializable"):
        save(tmp_path, 1, [], {"state": b"bytes"})
    with pytest.raises(InputError, match="needs a token"):
        save(tmp_path, 1, [], {}, num_ranks=2)
    with pytest.raises(InputError, match="rank 2 of 2 cannot save step 1"):
        save(tmp_path, 1, [], {}, rank=2, num_ranks=2, token="ab")


def test_the_same_step_again_gets_a_name_of_its_own_and_counts(tmp_path: Path, states) -> None:
    states.save(tmp_path, 3, 1.0)
    again = states.save(tmp_path, 3, 2.0, keep=Keep(last=2))
    assert (again.path.name, states.value(newest(tmp_path).path)) == ("step-00000003.1", 2.0)
    assert again.notes == ("pruned step-00000003",)


def test_leftovers_are_removed_and_reported(tmp_path: Path, states) -> None:
    for name in (".step-00000002.partial-cafe-1", ".trash-step-00000001-99"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard-00000-of-00001.safetensors").write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("not ours")
    saved = states.save(tmp_path, 3, 1.0)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000003", "notes.txt"}
    assert [note.split(",")[0] for note in saved.notes] == ["removed .step-00000002.partial-cafe-1", "removed .trash-step-00000001-99"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_refuses_at_any_call_leaves_old_or_new(code: int, tmp_path: Path, states, watched) -> None:
    outcomes = set()
    for fail_at in range(1, 1000):
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        states.save(folder, 1, 0.0)
        states.save(folder, 2, 1.0)

        def refuse(number: int, name: str, arguments: tuple, fail_at: int = fail_at) -> None:
            if number == fail_at and name != "close":  # from then on only closing works for a while
                raise OSError(code, os.strerror(code))

        with watched(refuse) as calls:
            try:
                saved = states.save(folder, 3, 2.0, keep=Keep(last=1))
                outcome = "whole" if not any(os.strerror(code) in note for note in saved.notes) else "whole, but not pruned"
            except CheckpointError as error:
                assert os.strerror(code) in error.what and error.where and error.fix
                outcome = "refused"
        outcomes.add(outcome)
        value = states.value(newest_loadable(folder).path)
        assert value == 2.0 if outcome.startswith("whole") else value in (1.0, 2.0)
        states.save(folder, 9, 3.0)
        assert not list(folder.glob(".*"))
        if len(calls) < fail_at:
            break
    assert outcomes == {"refused", "whole", "whole, but not pruned"}


def test_a_disk_that_takes_a_byte_less_each_time_gets_all(tmp_path: Path, states, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[: max(1, len(data) // 2)]))
    assert states.value(states.save(tmp_path, 1, 2.0).path) == 2.0


def test_a_folder_that_is_gone_is_not_made_anew(tmp_path: Path, states) -> None:
    with pytest.raises(CheckpointError, match="cannot begin the checkpoint of step 1: No such file or directory"):
        states.save(tmp_path / "gone", 1, 1.0)
    assert not (tmp_path / "gone").exists()


FULL_DISK = """
import sys
from pathlib import Path
import torch
from meshwright.train.checkpoint import CheckpointError, Piece, load, newest_loadable, save

folder = Path(sys.argv[1]) / "checkpoints"
folder.mkdir()
def pieces(value):
    return [Piece(name=f"t{n}", shape=(8192,), start=(0,), tensor=torch.full((8192,), value)) for n in range(8)]
save(folder, 1, pieces(1.0), {})
filler = folder.parent / "filler"
num_refused = 0
for free in range(0, 400_000, 8192):
    filler.write_bytes(b"")
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(max(0, file.tell() - free))
    try:
        save(folder, 2, pieces(2.0), {})
    except CheckpointError as error:
        assert "No space left on device" in error.what, error.what
        num_refused += 1
        found = newest_loadable(folder)
        assert found.step == 1, found
        wanted = pieces(0.0)
        load(found.path, wanted, names=None)
        assert all((piece.tensor == 1.0).all() for piece in wanted)
    else:
        break
print(num_refused, newest_loadable(folder).step)
"""


def test_a_full_disk_is_refused_until_there_is_room(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(FULL_DISK)
    disk = tmp_path / "disk"
    disk.mkdir()
    # A tmpfs that only this process sees, and that is gone with it.
    mounted = ["unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=1m none "$1" && exec "$2" "$3" "$1"', "sh"]
    run = subprocess.run([*mounted, disk, sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=120)
    if run.returncode and ("unshare:" in run.stderr or "mount:" in run.stderr):
        pytest.skip("this machine lets no one mount a disk of their own")
    assert run.returncode == 0, run.stderr
    num_refused, step = map(int, run.stdout.split())
    assert num_refused > 20 and step == 2


def by_ranks(folder: Path, states, together, num_ranks: int = 2, late: float = 0.0) -> list[str | Path]:
    """What each of the ranks, as threads named by their rank, says of one save: the path, or why it failed; rank 0 begins `late`."""

    def rank_saves(rank: int) -> str | Path:
        threading.current_thread().name = f"rank-{rank}"
        time.sleep(late if rank == 0 else 0.0)
        pieces = states.pieces(1.0, rank=rank, num_ranks=num_ranks)
        try:
            return save(folder, 5, pieces, {"value": 1.0}, rank=rank, num_ranks=num_ranks, token="ab", timeout_s=60.0).path
        except CheckpointError as error:
            return error.what

    return together([lambda rank=rank: rank_saves(rank) for rank in range(num_ranks)])


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch):
    """Lets one call of `os` fail, the first on that rank for a path that ends so (or any descriptor)."""

    def fail(name: str, rank: int, path_end: str = "") -> None:
        real, left = getattr(os, name), [1]

        def call(path: object, *rest: object, **options: object) -> object:
            if left and threading.current_thread().name == f"rank-{rank}" and str(path).endswith(path_end):
                left.clear()
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(path, *rest, **options)

        monkeypatch.setattr(os, name, call)

    return fail


def test_a_rank_that_cannot_even_make_the_folder_is_heard(tmp_path: Path, states, together, once) -> None:
    once("mkdir", rank=1)
    start_s = time.monotonic()
    first, second = by_ranks(tmp_path, states, together, late=0.3)
    assert time.monotonic() - start_s < 30
    assert second == "cannot begin the checkpoint of step 5: Input/output error"
    assert first == f"rank 1 could not save: {second}"


@pytest.mark.parametrize("name, rank, path_end", [("stat", 1, "partial-ab-0"), ("listdir", 0, "partial-ab-0"), ("fstat", 0, "")])
def test_one_read_error_while_ranks_wait_for_each_other_does_not_cost_the_save(
    name: str, rank: int, path_end: str, tmp_path: Path, states, together, once
) -> None:
    if name == "stat":  # the first one is in the beginning of the save, where it may fail
        (tmp_path / ".step-00000005.partial-ab-0").mkdir()
        once("stat", rank, "failed-00000.json")
    else:
        once(name, rank, path_end)
    assert by_ranks(tmp_path, states, together, late=0.1) == [tmp_path / "step-00000005"] * 2


def test_a_read_error_after_the_checkpoint_counts_is_a_note(tmp_path: Path, states, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_symlink(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(Path, "is_symlink", is_symlink)
    saved = states.save(tmp_path, 3, 1.0, keep=Keep(last=1))
    assert (saved.path.name, len(saved.notes)) == ("step-00000003", 1)


def test_an_error_that_nobody_foresaw_reaches_the_other_ranks(tmp_path: Path, states, together, monkeypatch: pytest.MonkeyPatch) -> None:
    def combine(*_: object) -> None:
        raise ZeroDivisionError("nobody thought of this")

    monkeypatch.setattr(saving, "combine", combine)
    start_s = time.monotonic()
    first, second = by_ranks(tmp_path, states, together)
    assert time.monotonic() - start_s < 30
    assert "ZeroDivisionError" in str(first) and "ZeroDivisionError" in str(second)


class Shared(dict[str, str]):
    """Notices that threads share."""

    post = dict.__setitem__
    read = dict.get


def test_a_rank_without_any_disk_tells_the_others_by_notice(tmp_path: Path, states, together, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, mkdir, open_file = Shared(), os.mkdir, os.open

    def refuse(real):
        def call(path: object, *rest: object, **options: object) -> object:
            if threading.current_thread().name == "save-5" and str(path).startswith(str(tmp_path / "1")):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(path, *rest, **options)

        return call

    monkeypatch.setattr(os, "mkdir", refuse(mkdir))
    monkeypatch.setattr(os, "open", refuse(open_file))
    for number in (0, 1):  # two mounts of one disk, of which the second fails
        mkdir(tmp_path / str(number))

    def rank_saves(rank: int):
        kinds = {"rank": rank, "num_ranks": 2, "token": "ab", "timeout_s": 60.0, "notices": shared}
        with AsyncSaver(tmp_path / str(rank), **kinds) as saver:
            return saver.save_now(5, states.pieces(1.0, rank=rank, num_ranks=2), {}).failure.what

    start_s = time.monotonic()
    first, second = together([lambda rank=rank: rank_saves(rank) for rank in range(2)])
    assert time.monotonic() - start_s < 30
    assert first == f"rank 1 could not save: {second}"
