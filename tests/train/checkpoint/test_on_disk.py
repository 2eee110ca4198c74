"""The files of a save on a disk. test_saving.py and test_crash.py test whole saves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from meshwright.train.checkpoint.attempt import Attempt
from meshwright.train.checkpoint.durable import CheckpointError
from meshwright.train.checkpoint.on_disk import DiskFiles


def files(folder: Path, rank: int = 0, num_ranks: int = 2) -> DiskFiles:
    attempt = Attempt(folder=folder, step=4, rank=rank, num_ranks=num_ranks, token="ab", number=7, timeout_s=1.0)
    return DiskFiles(attempt, folder)


def test_ranks_begin_in_one_folder(tmp_path: Path) -> None:
    for rank in (0, 1):
        files(tmp_path, rank).begin()
    assert [path.name for path in tmp_path.iterdir()] == [".step-00000004.partial-ab-7"]


def test_a_rank_that_gives_up_is_named_with_its_reason(tmp_path: Path) -> None:
    files(tmp_path, 1).give_up([1], "the disk is full")
    with pytest.raises(CheckpointError, match="rank 1 could not save: the disk is full"):
        files(tmp_path).gather({})


def test_rank_0_that_gives_up_is_heard_by_those_that_wait(tmp_path: Path) -> None:
    other = files(tmp_path, 1)
    other.begin()
    assert other.committed() is None
    files(tmp_path).give_up([0], "no space")
    with pytest.raises(CheckpointError, match="rank 0 gave up the save: no space"):
        other.committed()


def test_a_folder_that_was_renamed_is_found_by_what_does_not_change(tmp_path: Path) -> None:
    other = files(tmp_path, 1)
    other.begin()
    (tmp_path / "step-00000004").mkdir()
    os.rename(tmp_path / ".step-00000004.partial-ab-7", tmp_path / "step-00000004.1")
    assert other.committed() == tmp_path / "step-00000004.1"
