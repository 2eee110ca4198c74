"""Steps under the profiler: which, and what all ranks say together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meshwright.train.record import tracer
from meshwright.train.record.tracer import MOST_RANKS, Overlap, Tracer


def test_the_share_is_that_of_all_ranks_together() -> None:
    found = Overlap(first_step=5, num_steps=3, by_rank={0: (0.3, 0.1), 1: (0.1, 0.1), 3: (0.2, 0.1)}).detail()
    assert (found["communication_s"], found["hidden_s"], found["overlap_pct"]) == pytest.approx((0.2, 0.1, 50.0))
    assert (found["rank"], found["num_traced_ranks"]) == (0, 3)
    assert found["message"] == "50.0 % of the communication in steps 5 to 7 ran behind compute of the same rank (least on rank 0, 33.3 %)"


def test_a_rank_that_exchanges_nothing_has_no_share() -> None:
    found = Overlap(first_step=5, num_steps=1, by_rank={0: (0.0, 0.0)}).detail()
    assert "overlap_pct" not in found and found["message"] == "no communication was recorded in steps 5 to 5"


def a_tracer(folder: Path, first: int, last: int, rank: int = 0) -> Tracer:
    mesh: Any = SimpleNamespace(rank=rank, device=torch.device("cpu"))
    return Tracer(first, last, folder, mesh)


@pytest.mark.parametrize("first, last, ends", [(0, 9, []), (4, 9, [6]), (8, 9, [9]), (12, 9, [9])])
def test_three_steps_are_traced_or_those_that_are_left(tmp_path: Path, first: int, last: int, ends: list[int]) -> None:
    one = a_tracer(tmp_path, first, last)
    assert [step for step in range(1, last + 1) if one.ends_with(step)] == ends


def test_only_the_first_ranks_of_many_are_traced(tmp_path: Path) -> None:
    for rank, is_traced in ((MOST_RANKS - 1, True), (MOST_RANKS, False)):
        one = a_tracer(tmp_path, 2, 9, rank)
        assert [one.begins_with(step) for step in (1, 2, 3)] == [False, is_traced, False]


def test_a_trace_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    one = a_tracer(tmp_path / "nowhere", 1, 9)
    one.begin()
    torch.ones(4).sum()
    assert one._written() == (tracer.NOT_TRACED, tracer.NOT_TRACED)
