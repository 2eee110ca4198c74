"""The batches of a rank in order, also after some were put back or the deal was changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_run import Small

from meshwright.train.data.corpus import Corpus
from meshwright.train.data.samples import Samples
from meshwright.train.feed import Feed
from meshwright.train.job import TrainingJob


@pytest.fixture
def feed(small: Small) -> Any:
    job = TrainingJob(plan=small.plan("dp=2,mbs=2"), runs=Path("runs"), name="a", corpus=small.corpus)
    mesh: Any = SimpleNamespace(
        layout=job.plan.layout, dp=SimpleNamespace(index=1), cp=SimpleNamespace(size=1, index=0), device=torch.device("cpu")
    )
    with Feed(job, mesh, Samples(Corpus.open_checked(small.corpus).train, 32, 0), 16) as made:
        yield made


def numbers(batch: Any) -> list[tuple[int, ...]]:
    return [one.samples for one in batch]


def test_batches_come_in_order(feed: Feed) -> None:
    assert [numbers(feed.next()) for _ in range(2)] == [[(18, 19), (22, 23)], [(26, 27), (30, 31)]]


def test_batches_that_were_put_back_come_first(feed: Feed) -> None:
    taken = [feed.next() for _ in range(3)]
    feed.put_back(taken[1:])
    assert [numbers(feed.next()) for _ in range(3)] == [numbers(taken[1]), numbers(taken[2]), [(42, 43), (46, 47)]]


def test_another_deal_begins_with_the_next_step(feed: Feed) -> None:
    feed.next()
    feed.set_deal((1, 3), 24)
    assert numbers(feed.next()) == [(26, 27), (28, 29), (30, 31)]
    assert feed.deal == (1, 3)
