"""The pool of ranks itself: errors come back with their traceback, and no process stays behind."""

from __future__ import annotations

import os

import pytest
from on_ranks import groups_of
from parity import LLAMA, WORKLOAD, run_steps
from ranks import Pools, RankPool

from meshwright.layout import Layout


def test_a_pool_runs_one_function_after_another() -> None:
    pool = RankPool(2)
    first, second = pool.run(os.getpid), pool.run(os.getpid)
    pool.close()
    assert first == second and len(set(first)) == 2


@pytest.mark.parametrize(
    "body, args, message",
    [
        (groups_of, (Layout(dp=4),), "takes 4 ranks and 2 were started"),
        (os._exit, (3,), r"rank [01] died with exit code 3"),
        (run_steps, (LLAMA, WORKLOAD, Layout(dp=2, cp=2), 1), "takes 4 ranks"),
    ],
)
def test_a_failure_is_raised_and_ends_every_rank(body, args: tuple[object, ...], message: str) -> None:
    pool = RankPool(2)
    processes = list(pool.processes)
    with pytest.raises(AssertionError, match=message):
        pool.run(body, *args)
    assert [process.is_alive() for process in processes] == [False, False]
    assert not os.path.exists(pool.folder.name)


def test_a_pool_that_failed_is_started_anew() -> None:
    pools = Pools()
    first = pools.of(1)
    with pytest.raises(AssertionError):
        first.run(os._exit, 1)
    second = pools.of(1)
    assert second is not first and second.run(os.getpid) and pools.of(1) is second
    pools.close()
    assert not second.processes[0].is_alive()
