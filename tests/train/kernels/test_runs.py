"""Documents as runs: numbers worked by hand, and the law that runs hold the pairs of tokens that share a document."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.train.kernels.runs import Runs, runs_between, runs_of


def test_runs_of_two_sequences_worked_by_hand() -> None:
    runs = runs_of(np.array([[0, 0, 1, 1, 1], [0, 2, 2, 3, 3]]))
    assert runs.query_lengths == runs.key_lengths == (2, 3, 1, 2, 2)
    assert runs.query_starts.tolist() == [0, 2, 5, 6, 8, 10] and runs.query_starts.dtype == torch.int32
    assert (runs.longest_query, runs.longest_key, runs.is_hidden) == (3, 3, False)


def test_queries_without_keys_and_keys_without_queries_have_runs_too() -> None:
    runs = runs_between(np.array([[1, 1, 2, 3]]), np.array([[0, 1, 1, 1, 3]]))
    assert (runs.query_lengths, runs.key_lengths) == ((0, 2, 1, 1), (1, 3, 0, 1))
    assert (runs.longest_query, runs.longest_key) == (2, 3)
    assert runs_between(np.array([[1, 1]]), np.array([[0, 0, 0]])).is_hidden


def test_sequences_are_kept_apart() -> None:
    runs = runs_between(np.array([[0], [5]]), np.array([[5], [0]]))
    assert runs.is_hidden and sum(runs.query_lengths) == sum(runs.key_lengths) == 2


def test_starts_that_are_one_tensor_are_copied_once() -> None:
    copied: list[torch.Tensor] = []
    moved = runs_of(np.array([[0, 1]])).moved(lambda starts: copied.append(starts) or starts.clone())
    assert len(copied) == 1 and moved.query_starts is moved.key_starts


def pairs(runs: Runs) -> np.ndarray:
    """Whether each query attends to each key, all sequences in a row."""
    which = [np.repeat(np.arange(len(lengths)), lengths) for lengths in (runs.query_lengths, runs.key_lengths)]
    return which[0][:, None] == which[1][None, :]


rows = st.lists(st.lists(st.integers(0, 5), min_size=6, max_size=6).map(sorted), min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(documents=rows, queries=st.integers(1, 6), keys=st.integers(1, 6))
def test_runs_hold_the_pairs_that_share_a_document(documents: list[list[int]], queries: int, keys: int) -> None:
    every = np.array(documents)
    mine, theirs = every[:, -queries:], every[:, :keys]
    numbers = [(each + 10 * np.arange(len(every))[:, None]).reshape(-1) for each in (mine, theirs)]
    assert (pairs(runs_between(mine, theirs)) == (numbers[0][:, None] == numbers[1][None, :])).all()
    assert (pairs(runs_of(mine)) == (numbers[0][:, None] == numbers[0][None, :])).all()
