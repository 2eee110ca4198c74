"""One process at a time writes a run's folder; a lock goes with the process that held it, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.record.lock import LOCK, RunLock, check_free

HOLD = """
import sys, time
from pathlib import Path
from meshwright.record.lock import RunLock
lock = RunLock.take(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "first"


def test_a_lock_makes_its_folder_and_says_who_holds_it(folder: Path) -> None:
    with RunLock.take(folder):
        assert (folder / LOCK).read_text() == f"process {os.getpid()} on {os.uname().nodename}\n"
        with pytest.raises(InputError) as caught:
            RunLock.take(folder)
    assert caught.value.what == f"this run is being written by process {os.getpid()} on {os.uname().nodename}"
    assert caught.value.where == str(folder) and "kill" in caught.value.fix


def test_a_lock_that_was_released_can_be_taken_again_and_names_nobody(folder: Path) -> None:
    lock = RunLock.take(folder)
    lock.release()
    lock.release()  # twice does no harm
    assert (folder / LOCK).read_text() == ""
    RunLock.take(folder).release()


def test_a_lock_goes_also_where_the_work_fails(folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunLock.take(folder):
        raise ZeroDivisionError
    check_free(folder)


def test_a_lock_goes_with_the_process_that_is_killed(folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        try:
            with pytest.raises(InputError, match=f"written by process {other.pid} on"):
                check_free(folder)
        finally:
            other.send_signal(signal.SIGKILL)
            other.wait()
    assert f"process {other.pid}" in (folder / LOCK).read_text()  # its name is left, its lock is not
    check_free(folder)


def test_a_folder_that_nobody_ever_locked_is_free_and_stays_as_it_is(folder: Path) -> None:
    check_free(folder)
    assert not folder.exists()
    folder.mkdir(parents=True)
    check_free(folder)
    assert list(folder.iterdir()) == []


def test_a_link_in_the_place_of_the_lock_is_not_followed(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(parents=True)
    (tmp_path / "victim").write_text("precious")
    (folder / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(InputError, match="cannot lock the run's folder"):
        RunLock.take(folder)
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_file_in_the_place_of_the_folder_is_an_error_with_a_fix(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("")
    with pytest.raises(InputError) as caught:
        RunLock.take(folder)
    assert caught.value.what.startswith("cannot lock the run's folder: ") and caught.value.fix


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
def test_on_a_disk_without_locks_a_run_is_written_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def no_locks(fd: int, how: int) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with RunLock.take(folder):
        assert (folder / LOCK).read_text().startswith("process ")


def test_a_disk_that_fails_is_an_error_and_leaves_no_descriptor_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int, how: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    RunLock.take(folder).release()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(fcntl, "flock", fails)
    with pytest.raises(InputError, match="cannot lock the run's folder: Input/output error"):
        RunLock.take(folder)
    assert len(os.listdir("/proc/self/fd")) == before
