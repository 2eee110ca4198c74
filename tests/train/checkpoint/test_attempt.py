"""One save as one rank sees it."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.train.checkpoint.attempt import Attempt, belongs, polls
from meshwright.train.checkpoint.manifest import SavedFile, ShardReport


def attempt(**changes: object) -> Attempt:
    return Attempt(**{"folder": Path(), "step": 4, "rank": 0, "num_ranks": 2, "token": "ab", "number": 7, "timeout_s": 1.0, **changes})


@pytest.mark.parametrize("wrong", [{"rank": 2}, {"rank": -1}, {"step": -1}])
def test_ranks_and_steps_count_from_0(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="cannot save step"):
        attempt(**wrong)


def test_names_of_a_save() -> None:
    assert (attempt().name, attempt().failed, attempt().saved) == ("ab-7", "ab-7/failed", "ab-7/saved")


class Notes:
    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def post(self, name: str, text: str) -> None:
        self.texts[name] = text

    def read(self, name: str) -> str | None:
        return self.texts.get(name)


def test_the_first_failure_is_the_one_that_others_learn() -> None:
    notes = Notes()
    attempt(rank=1, notices=notes).post_failure("the disk is full")
    attempt(rank=0, notices=notes).post_failure("another rank failed")
    assert notes.texts == {"ab-7/failed": "rank 1 could not save: the disk is full"}


def test_polls_grow_and_end() -> None:
    assert len(list(polls(0.02, 0.01))) >= 2
    assert len(list(polls(0.0, 0.01))) == 1
    assert len(list(islice(polls(60.0, 0.001), 5))) == 5


def test_a_report_belongs_to_one_rank_of_one_save() -> None:
    file = SavedFile(name="shard-00001-of-00002.safetensors", size_bytes=0, blocks=())
    report = ShardReport(attempt="ab-7", step=4, rank=1, num_ranks=2, file=file, tensors={})
    assert belongs(report, attempt(), 1, file.name)
    assert not belongs(report, attempt(), 0, file.name) and not belongs(report, attempt(number=8), 1, file.name)
    assert not belongs(report, attempt(step=5), 1, file.name) and not belongs(report, attempt(), 1, "another")
