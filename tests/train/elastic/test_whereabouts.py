"""Ranks that are late at a meeting, as the supervisor sees them: with stacks that a test has written."""

from __future__ import annotations

import time

import pytest

from meshwright.train.elastic.pulse import Stacks
from meshwright.train.elastic.whereabouts import LATE_S, Expected, Whereabouts
from meshwright.train.launch import Failure

LIMIT_S = 15.0
STACKS = """Thread 0x2 (most recent call first):
  File "/a/threading.py", line 1 in run

Thread 0x1 (most recent call first):
  File "/a/meshwright/train/loop.py", line 2 in train
"""
CRASH = """Fatal Python error: Segmentation fault

Current thread 0x2 (most recent call first):
  File "/a/meshwright/kernels.py", line 3 in split

"""


class Answers(Stacks):
    """The stacks of a process that answers with this text, after a time that only a reader who waits sees pass."""

    def __init__(self, text: str, after_s: float = 0.0) -> None:
        self.text, self.after_s, self.num_asked = text, after_s, 0

    def ask(self, pid: int | None) -> None:
        self.num_asked += 1

    def read(self, within_s: float = 1.0) -> str:
        time.sleep(min(self.after_s, within_s))
        return self.text if within_s >= self.after_s else ""


class Kept:
    """Where stacks are kept."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int, str]] = []

    def __call__(self, generation: int, rank: int, stacks: str) -> str:
        self.all.append((generation, rank, stacks))
        return f"stacks/{generation}-{rank}.txt"


def num_asked(one: Expected) -> int:
    assert isinstance(one.stacks, Answers)
    return one.stacks.num_asked


def announced() -> tuple[Whereabouts, Kept, float]:
    """The meeting of generation 3, and when it was announced."""
    kept = Kept()
    whereabouts = Whereabouts(kept)
    whereabouts.announced(3)
    return whereabouts, kept, time.monotonic()


def test_a_rank_is_asked_once_and_given_up_at_the_limit() -> None:
    whereabouts, kept, at_s = announced()
    expected = [Expected(1, 11, Answers(STACKS), 0.0), Expected(2, 12, Answers(STACKS), 0.0)]
    whereabouts.has_come(2, Answers(STACKS))
    for waited_s in (LATE_S - 1.0, LATE_S + 1.0, LATE_S + 2.0):
        assert whereabouts.missing(expected, LIMIT_S, at_s + waited_s) is None
    missing = whereabouts.missing(expected, LIMIT_S, at_s + LIMIT_S + 1.0)
    assert missing is not None
    ranks, failure = missing
    where = 'rank 1 was in File "/a/meshwright/train/loop.py", line 2 in train (stacks/3-1.txt)'
    assert (ranks, failure.reason, failure.rank) == ([1], "hang", 1)
    assert failure.message == f"{where}, and did not come to generation 3 within 15 s"
    assert [num_asked(one) for one in expected] == [1, 0]
    assert kept.all == [(3, 1, STACKS)]


def test_ranks_that_say_nothing_do_not_hold_up_the_supervisor() -> None:
    whereabouts, kept, at_s = announced()
    expected = [Expected(rank, rank, Answers("", after_s=5.0), 0.0) for rank in range(8)]
    assert whereabouts.missing(expected, LIMIT_S, at_s + LATE_S) is None
    begun_s = time.monotonic()
    missing = whereabouts.missing(expected, LIMIT_S, at_s + LIMIT_S + 1.0)
    assert time.monotonic() - begun_s < 1.0
    assert missing is not None and (missing[0], missing[1].rank, kept.all) == (list(range(8)), None, [])
    assert missing[1].message.startswith("rank 0 did not say where it was; rank 1 did not say where it was; ")


def test_a_supervisor_that_was_stopped_itself_lets_a_rank_answer_before_it_gives_it_up() -> None:
    whereabouts, _, at_s = announced()
    expected = [Expected(1, 11, Answers(STACKS), 0.0)]
    assert whereabouts.missing(expected, LIMIT_S, at_s + 3600.0) is None, "it was asked just now"
    assert whereabouts.missing(expected, LIMIT_S, at_s + 3602.0) is not None


def test_time_counts_from_the_announcement_or_from_when_a_rank_was_ready() -> None:
    whereabouts, _, at_s = announced()
    before, later = Expected(1, 11, Answers(STACKS), 0.0), Expected(2, 12, Answers(STACKS), at_s + 100.0)
    assert whereabouts.missing([later], LIMIT_S, at_s + 100.0 + LATE_S - 1.0) is None
    assert whereabouts.missing([before], LIMIT_S, at_s + LATE_S + 1.0) is None
    assert [num_asked(one) for one in (before, later)] == [1, 0]
    whereabouts.announced(4)
    assert whereabouts.missing([before], LIMIT_S, time.monotonic() + LATE_S) is None
    assert num_asked(before) == 2, "once in each generation"


def test_a_rank_that_comes_late_says_where_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    whereabouts, kept, at_s = announced()
    answers = Answers(STACKS)
    whereabouts.missing([Expected(1, 11, answers, 0.0)], LIMIT_S, at_s + LATE_S + 1.0)
    whereabouts.has_come(1, answers)
    whereabouts.has_come(2, Answers(STACKS))
    said = capsys.readouterr().err
    assert said.startswith("meshwright: rank 1 came to generation 3 after 0.0 s; it was in File ") and said.count("\n") == 1
    assert kept.all == [(3, 1, STACKS)]


def test_a_crash_is_named_and_its_stacks_are_kept() -> None:
    whereabouts, kept, _ = announced()
    killed = Failure(reason="signal", rank=1, message="rank 1 was killed by SIGSEGV")
    where = 'in File "/a/meshwright/kernels.py", line 3 in split (stacks/3-1.txt)'
    assert whereabouts.of_crash(killed, 1, Answers(CRASH)).message == f"{killed.message}, {where}"
    assert whereabouts.of_crash(killed, 1, Answers(STACKS)) is killed, "it was only asked"
    assert kept.all == [(3, 1, CRASH)]
