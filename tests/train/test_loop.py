"""When the loop evaluates. tests/train/test_end_to_end.py has what it does to a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_run import Small

from meshwright.describe.workload import Evaluation
from meshwright.train.job import Job
from meshwright.train.loop import _next_evaluation


def job(small: Small, **workload: Any) -> Job:
    return Job(plan=small.plan("dp=2", **workload), runs=Path("runs"), name="a", corpus=small.corpus)


@pytest.mark.parametrize("samples, due", [(0, 16), (8, 16), (16, 32), (24, 32), (40, 48)])
def test_evaluations_come_every_so_many_samples(small: Small, samples: int, due: int) -> None:
    """A run that goes on after 24 samples evaluates where an unbroken one does."""
    assert _next_evaluation(job(small, evaluation=Evaluation(num_samples=6, every_samples=16)), samples) == due


def test_the_first_evaluation_may_wait(small: Small) -> None:
    late = job(small, evaluation=Evaluation(num_samples=6, every_samples=16, start_samples=100))
    assert [_next_evaluation(late, samples) for samples in (0, 90, 104, 112)] == [100, 100, 112, 128]


def test_without_an_evaluation_none_is_due(small: Small) -> None:
    assert _next_evaluation(job(small), 10_000) == math.inf
